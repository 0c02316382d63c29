"""The pages of the review desk, over the same verbs as the API: what a key may not do there, it may not do here."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from muniment.actors.clock import Clock, system_clock
from muniment.cluster.endpoints import BY_VERB, Answer, Services, dispatch
from muniment.cluster.settings import LimitSettings
from muniment.deploy.console import views
from muniment.deploy.console.forms import read_form, resolution
from muniment.deploy.console.messages import CATALOGUES, LANGUAGES, Words, distance, language_of, words
from muniment.deploy.console.session import (
    PATH,
    Session,
    begin,
    check_token,
    end,
    is_https,
    read_session,
    refuse_other_sites,
)
from muniment.deploy.problems import status_of
from muniment.policies.access import Principal
from muniment.policies.errors import (
    AlreadyRuled,
    Forbidden,
    InvalidInput,
    MunimentError,
    NotFound,
    Unauthenticated,
    Unavailable,
)

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_STATIC = {"console.css": "text/css", "htmx.min.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LANGUAGE_COOKIE = "muniment_language"
_PAGE = 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def console_router(services: Services, limits: LimitSettings, clock: Clock = system_clock) -> APIRouter:
    """The routes under ``/console``. They sign in by themselves: the application lets them through without a key."""
    desk = _Desk(services, limits, clock)
    router = APIRouter(prefix=PATH, include_in_schema=False)
    for path, handler, method in (
        ("", desk.home, "GET"),
        ("/sign-in", desk.sign_in_page, "GET"),
        ("/sign-in", desk.sign_in, "POST"),
        ("/sign-out", desk.sign_out, "POST"),
        ("/language/{language}", desk.choose_language, "GET"),
        ("/static/{name}", desk.static, "GET"),
        ("/conflicts", desk.conflicts, "GET"),
        ("/conflicts/{conflict_id}", desk.rule, "POST"),
        ("/facts", desk.facts, "GET"),
        ("/decisions", desk.decisions, "GET"),
        ("/runs", desk.runs, "GET"),
    ):
        router.add_api_route(path, desk.answered(handler), methods=[method], name=handler.__name__)
    return router


Handler = Callable[[Request], Awaitable[Response]]


class _Desk:
    """Renders pages for whoever is signed in."""

    def __init__(self, services: Services, limits: LimitSettings, clock: Clock) -> None:
        self._services = services
        self._limits = limits
        self._clock = clock
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "chip": views.chip,
            "quoted": views.quoted,
            "shown": views.shown,
            "is_number": views.is_number,
            "weighed": views.weighed,
        }
        self._templates.filters |= {"moment": views.moment, "stamp": views.stamp, "pretty": views.pretty}

    # --- what every page goes through

    def answered(self, handler: Handler) -> Handler:
        """The handler with its errors shown as a page."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except MunimentError as error:
                return self._problem(request, error)

        return answer

    def _problem(self, request: Request, error: MunimentError) -> Response:
        status = status_of(error)
        if status >= 500 and not isinstance(error, Unavailable):
            log.exception("request %s failed", getattr(request.state, "request_id", ""))
        if isinstance(error, Unauthenticated):
            response = self._redirect(request, "/sign-in")
            end(response)
            return response
        part = "hx-request" in request.headers
        response = self._render(
            request, "_problem.html" if part else "problem.html", status=status, message=self._told(request, error)
        )
        if part:
            response.headers.update({"HX-Retarget": "find .said", "HX-Reswap": "innerHTML"})
        return response

    def _told(self, request: Request, error: MunimentError) -> str:
        say = self._words(request)
        known = {
            Unauthenticated: "unauthenticated",
            Forbidden: "forbidden",
            NotFound: "not_found",
            AlreadyRuled: "already_ruled",
            Unavailable: "unavailable",
        }
        name = next((name for kind, name in known.items() if isinstance(error, kind)), None)
        if name is not None:
            return say(f"problem.{name}")
        if isinstance(error, InvalidInput) and error.fields.get("errors"):
            return " · ".join(_field_told(say, wrong) for wrong in error.fields["errors"])
        return error.detail

    def _language(self, request: Request) -> str:
        return language_of(request.cookies.get(_LANGUAGE_COOKIE), request.headers.get("accept-language", ""))

    def _words(self, request: Request) -> Words:
        return words(self._language(request))

    def _render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        language, now = self._language(request), self._clock()
        say = words(language)
        session = read_session(request)
        catalogue = CATALOGUES[language]

        def named(group: str, name: str) -> str:
            """A word of a closed set; one that is new here is shown as it is."""
            return catalogue.get(f"{group}.{name}", str(name).replace("_", " "))

        def reasoned(entry: Answer) -> str:
            """Why it was decided so, in the page's language where the rule is a known one."""
            known = (f"rule.{entry['rule']}", f"decided.{entry['rule']}")
            return next((catalogue[name] for name in known if name in catalogue), str(entry["reason"]))

        html = self._templates.get_template(template).render(
            t=say,
            named=named,
            reasoned=reasoned,
            distance=lambda at: distance(at, now, say),
            now=now,
            language=language,
            other_language=next(tag for tag in LANGUAGES if tag != language),
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            path=request.url.path,
            token=session.token if session else "",
            principal=getattr(request.state, "signed_in", None),
            console=PATH,
            **values,
        )
        return HTMLResponse(html, status_code=status, headers=_HEADERS)

    def _redirect(self, request: Request, path: str) -> Response:
        if "hx-request" in request.headers:
            return Response(headers={"HX-Redirect": PATH + path})
        return RedirectResponse(PATH + path, status_code=303)

    async def _principal(self, request: Request) -> Principal:
        session = read_session(request)
        if session is None:
            raise Unauthenticated("nobody is signed in")
        principal = await self._authenticate(session)
        request.state.signed_in = principal
        return principal

    async def _authenticate(self, session: Session) -> Principal:
        principal: Principal = await self._services.admin.authenticate(
            f"Bearer {session.key}", session.user, session.company
        )
        return principal

    async def _ask(self, request: Request, verb: str, named: list[str], data: dict[str, Any]) -> Answer:
        principal = await self._principal(request)
        given = {name: value for name, value in data.items() if value not in (None, "")}
        return await dispatch(self._services, principal, BY_VERB[verb], named, given, self._limits)

    # --- signing in and out

    async def home(self, request: Request) -> Response:
        """Where the desk begins."""
        return self._redirect(request, "/conflicts")

    async def sign_in_page(self, request: Request) -> Response:
        """The form that asks for a key."""
        return self._render(request, "sign_in.html", failed="")

    async def sign_in(self, request: Request) -> Response:
        """Begins a session if the key is good."""
        refuse_other_sites(request)
        form = await read_form(request, self._limits.body_bytes)
        session = Session(form.get("key", ""), form.get("user"), form.get("company"))
        try:
            await self._authenticate(session)
        except MunimentError as error:
            return self._render(request, "sign_in.html", status=status_of(error), failed=self._told(request, error))
        response = self._redirect(request, "/conflicts")
        begin(response, session, request)
        return response

    async def sign_out(self, request: Request) -> Response:
        """Ends the session."""
        await self._form(request)
        response = self._redirect(request, "/sign-in")
        end(response)
        return response

    async def _form(self, request: Request) -> dict[str, str]:
        """The form of a signed-in page."""
        refuse_other_sites(request)
        session = read_session(request)
        if session is None:
            raise Unauthenticated("nobody is signed in")
        form = await read_form(request, self._limits.body_bytes)
        check_token(session, form.pop("token", ""))
        return form

    async def choose_language(self, request: Request) -> Response:
        """Remembers the language and goes back."""
        language = request.path_params["language"]
        if language not in LANGUAGES:
            raise NotFound("there is no such language here")
        back = request.query_params.get("back", "")
        inside = back.startswith(PATH) and "\\" not in back and not back.startswith("//")
        response = RedirectResponse(back if inside else PATH, status_code=303)
        year = 365 * 24 * 3600
        response.set_cookie(
            _LANGUAGE_COOKIE, language, max_age=year, path=PATH, samesite="lax", secure=is_https(request)
        )
        return response

    async def static(self, request: Request) -> Response:
        """The style sheet, the script and the icon."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise NotFound("there is no such file")
        headers = {**_HEADERS, "Cache-Control": "public, max-age=3600"}
        return FileResponse(_HERE / "static" / name, media_type=_STATIC[name], headers=headers)

    # --- conflicts

    async def conflicts(self, request: Request) -> Response:
        """What waits for the signed-in owner, or what was closed."""
        chosen = request.query_params.get("show", "all")
        closed = chosen == "closed"
        query = {
            "status": "resolved" if closed else "open",
            "kind": chosen if chosen in ("conflict", "review", "notice") else None,
            "subject": request.query_params.get("subject"),
            "field": request.query_params.get("field"),
            "cursor": request.query_params.get("cursor"),
            "limit": _PAGE,
        }
        answer = await self._ask(request, "conflicts", [], query)
        return self._render(
            request,
            "conflicts.html",
            conflicts=answer["conflicts"],
            more=self._more(request, answer),
            chosen=chosen,
            closed=closed,
        )

    def _more(self, request: Request, answer: Answer) -> str | None:
        """The address of the next page."""
        if "next" not in answer:
            return None
        return f"{request.url.path}?{urlencode({**request.query_params, 'cursor': answer['next']})}"

    async def rule(self, request: Request) -> Response:
        """A ruling, from one of a card's forms. With scripts, its confirmation takes the card's place."""
        form = await self._form(request)
        body = resolution(form)
        answer = await self._ask(request, "resolve", [request.path_params["conflict_id"]], body)
        if "hx-request" not in request.headers:
            return self._redirect(request, "/conflicts")
        return self._render(
            request,
            "_ruled.html",
            decision=body["decision"],
            answer=answer,
            subject=form.get("slot_subject", ""),
            field=form.get("slot_field", ""),
        )

    # --- facts, decisions, runs

    async def facts(self, request: Request) -> Response:
        """One slot: what holds, and its timeline."""
        subject, field = (request.query_params.get(name, "").strip() for name in ("subject", "field"))
        if not subject or not field:
            await self._principal(request)
            return self._render(request, "facts.html", subject=subject, field=field, answer=None)
        answer = await self._ask(request, "facts", [], {"subject": subject, "field": field})
        now = self._clock()
        entries = views.timeline(answer, now)
        return self._render(
            request,
            "facts.html",
            subject=subject,
            field=field,
            answer=answer,
            entries=entries,
            strip=views.strip(entries, now),
        )

    async def decisions(self, request: Request) -> Response:
        """The decision log, searchable."""
        search = {name: request.query_params.get(name, "").strip() for name in ("subject", "field", "kind", "since")}
        query: dict[str, Any] = {**search, "cursor": request.query_params.get("cursor"), "limit": _PAGE}
        if search["since"] and "T" not in search["since"]:
            query["since"] = search["since"] + "T00:00:00Z"
        answer = await self._ask(request, "decisions", [], query)
        return self._render(
            request, "decisions.html", search=search, entries=answer["entries"], more=self._more(request, answer)
        )

    async def runs(self, request: Request) -> Response:
        """A run's trail."""
        run = request.query_params.get("run", "").strip()
        if not run:
            await self._principal(request)
            return self._render(request, "runs.html", run="", entries=None, more=None)
        query = {"cursor": request.query_params.get("cursor"), "limit": 100}
        answer = await self._ask(request, "trail", [run], query)
        return self._render(request, "runs.html", run=run, entries=answer["entries"], more=self._more(request, answer))


#: The label under which a form shows what a request calls by its pointer.
_LABELS = {"value": "other.value", "text": "other.text", "note": "note", "rescope": "both", "since": "since"}
_LABELS |= {"subject": "subject", "field": "field", "run_id": "run"}


def _field_told(say: Words, wrong: dict[str, str]) -> str:
    name = wrong["pointer"].strip("/").split("/")[0]
    return f"{say(_LABELS[name])}: {wrong['message']}" if name in _LABELS else wrong["message"]
