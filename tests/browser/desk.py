"""A browser's tab at a review desk. Screenshots are left in ``.screenshots``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHOTS = Path(__file__).parents[2] / ".screenshots"


class Desk:
    """A browser's tab at one desk; whatever a page complains about fails the test."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))

    def go(self, path: str) -> None:
        self.page.goto(f"{self.url}/console{path}")

    def sign_in(self, key: str = "ana-key") -> None:
        self.go("")
        self.page.get_by_label("Your key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/conflicts")

    def shot(self, name: str) -> None:
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def fits(self) -> None:
        assert self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
