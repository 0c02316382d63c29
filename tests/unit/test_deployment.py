"""The deployment files hold together: names, images, settings, variables, and Ray Serve's own schema."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field
from ray.serve.schema import ServeDeploySchema

from muniment.cluster.naming import SERVE_APP
from muniment.cluster.settings import ENV_PREFIX, document, load
from muniment.deploy import ingress

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
SERVE = yaml.safe_load((DEPLOY / "serve.yaml").read_text())
RAYSERVICE = yaml.safe_load((DEPLOY / "kuberay" / "rayservice.yaml").read_text())
AROUND = list(yaml.safe_load_all((DEPLOY / "kuberay" / "around.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
CLUSTER = RAYSERVICE["spec"]["rayClusterConfig"]
GROUPS = {"head": CLUSTER["headGroupSpec"], **{group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}}
VARIABLES = {entry["variable"] for entry in document()}
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(r"[\w.-]+==", line)
)


def containers() -> list[tuple[str, dict[str, Any]]]:
    return [(name, one) for name, group in GROUPS.items() for one in group["template"]["spec"]["containers"]]


def stages() -> dict[str, str]:
    """The Dockerfile's stages and what each is made from."""
    return {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}


# Ray Serve


@pytest.mark.parametrize(
    "config", [SERVE, yaml.safe_load(RAYSERVICE["spec"]["serveConfigV2"])], ids=["file", "kuberay"]
)
def test_ray_serve_takes_the_configuration_and_we_the_settings(config: dict[str, Any], tmp_path: Path) -> None:
    ServeDeploySchema.model_validate(config)
    (application,) = config["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, getattr(ingress, name)) == (ingress.__name__, ingress.application)
    assert (application["name"], application["route_prefix"]) == (SERVE_APP, "/")
    (deployment,) = application["deployments"]
    assert deployment["name"] == ingress.deployment(lambda: None, {}).name
    load(data_dir=tmp_path, **application["args"])


def test_both_serve_configurations_say_the_same_where_nothing_depends_on_the_place() -> None:
    inside = yaml.safe_load(RAYSERVICE["spec"]["serveConfigV2"])
    for key in ("proxy_location", "http_options", "logging_config"):
        assert inside[key] == SERVE[key]
    alike = {"num_replicas": 0}
    assert inside["applications"][0]["deployments"][0] | alike == SERVE["applications"][0]["deployments"][0] | alike


def test_variables_of_the_processes_are_the_same_everywhere() -> None:
    wanted = SERVE["applications"][0]["runtime_env"]["env_vars"]
    for _, container in containers():
        given = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert wanted.items() <= given.items()
        assert given["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


# Containers


def test_every_variable_of_ours_is_a_setting() -> None:
    texts = [path.read_text() for path in (DEPLOY / "docker").iterdir()]
    texts += [path.read_text() for path in (DEPLOY / "kuberay").iterdir()] + [(DEPLOY / "serve.yaml").read_text()]
    named = {name for text in texts for name in re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", text)}
    assert named <= VARIABLES
    assert len(named) >= 6


def test_the_dockerfile_has_both_variants_and_runs_as_nobody_special() -> None:
    made = stages()
    assert {"cpu", "gpu"} <= set(made)
    assert made["cpu"] == made["gpu"] == "runtime"
    runtime = DOCKERFILE[DOCKERFILE.index("AS runtime") :]
    assert re.search(r"^USER muniment$", runtime, re.MULTILINE)
    assert "USER root" not in DOCKERFILE
    assert "HEALTHCHECK" in runtime
    for source in re.findall(r"COPY --from=(\S+)", DOCKERFILE):
        assert source in made


def test_what_is_copied_into_the_image_exists_and_is_not_ignored() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert lines[1] == "*"
    for copied in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in kept, source


def test_the_compose_file_names_what_there_is() -> None:
    ours, postgres = COMPOSE["services"]["muniment"], COMPOSE["services"]["postgres"]
    assert ours["build"]["target"] in stages()
    assert ours["image"] == f"muniment:{ours['build']['target']}"
    assert (DEPLOY / "docker" / ours["build"]["context"] / ours["build"]["dockerfile"]).is_file()
    user, database = postgres["environment"]["POSTGRES_USER"], postgres["environment"]["POSTGRES_DB"]
    # For every process of the container: what one command line sets, docker compose exec does not see.
    assert "command" not in ours
    given = ours["environment"]
    assert given["MUNIMENT_STORE__URL"] == f"postgresql://{user}@postgres:5432/{database}"
    assert given["MUNIMENT_STORE__PASSWORD_FILE"] == postgres["environment"]["POSTGRES_PASSWORD_FILE"]
    assert Path(given["MUNIMENT_STORE__PASSWORD_FILE"]).name in ours["secrets"]
    assert set(ours["secrets"]) == set(postgres["secrets"]) == set(COMPOSE["secrets"])
    mounted = [volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]]
    assert sorted(mounted) == sorted(COMPOSE["volumes"])
    over = yaml.safe_load((DEPLOY / "docker" / "compose.gpu.yaml").read_text())["services"]["muniment"]
    assert over["build"]["target"] in stages()
    assert over["image"] == f"muniment:{over['build']['target']}"


# Kubernetes


class Part(BaseModel):
    """A piece of a manifest of which every field is known here."""

    model_config = ConfigDict(extra="forbid")


class Container(Part):
    """What our containers say."""

    name: str
    image: str = Field(pattern=r"^muniment:(cpu|gpu)$")
    env: list[dict[str, Any]]
    ports: list[dict[str, Any]]
    resources: dict[str, dict[str, str]]
    lifecycle: dict[str, Any] | None = None
    securityContext: dict[str, Any]  # noqa: N815
    volumeMounts: list[dict[str, str]]  # noqa: N815


class Pod(Part):
    """What our pods say."""

    enableServiceLinks: Literal[False]  # noqa: N815
    terminationGracePeriodSeconds: int  # noqa: N815
    securityContext: dict[str, Any]  # noqa: N815
    containers: list[Container]
    volumes: list[dict[str, Any]]
    tolerations: list[dict[str, Any]] = []
    topologySpreadConstraints: list[dict[str, Any]] = []  # noqa: N815


class Template(Part):
    """Labels and pod."""

    metadata: dict[str, dict[str, str]]
    spec: Pod


class Group(Part):
    """A worker group of a RayCluster."""

    groupName: str  # noqa: N815
    replicas: int
    minReplicas: int  # noqa: N815
    maxReplicas: int  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: Template


class Head(Part):
    """The head group."""

    rayStartParams: dict[str, str]  # noqa: N815
    template: Template


def test_the_ray_service_has_the_shape_that_kuberay_knows() -> None:
    assert (RAYSERVICE["apiVersion"], RAYSERVICE["kind"]) == ("ray.io/v1", "RayService")
    known = {"rayClusterDeletionDelaySeconds", "excludeHeadPodFromServeSvc", "serveConfigV2", "rayClusterConfig"}
    assert set(RAYSERVICE["spec"]) == known
    assert CLUSTER["rayVersion"] == PINNED["ray"]
    assert set(CLUSTER) == {
        "rayVersion",
        "authOptions",
        "gcsFaultToleranceOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    }
    head = Head.model_validate(CLUSTER["headGroupSpec"])
    assert head.rayStartParams["num-cpus"] == "0"
    for one in CLUSTER["workerGroupSpecs"]:
        group = Group.model_validate(one)
        assert group.minReplicas <= group.replicas <= group.maxReplicas
        for container in group.template.spec.containers:
            assert container.lifecycle is not None
            wait = re.search(r"sleep (\d+)", str(container.lifecycle["preStop"]))
            assert wait is not None
            drain = SERVE["applications"][0]["deployments"][0]["graceful_shutdown_timeout_s"]
            assert drain <= int(wait[1]) < group.template.spec.terminationGracePeriodSeconds


def test_every_pod_runs_as_nobody_special_and_mounts_what_it_has() -> None:
    for name, group in GROUPS.items():
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert container["image"] == f"muniment:{'gpu' if name == 'gpu' else 'cpu'}"
            assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (name == "gpu")


def test_our_ray_actors_are_kept_off_the_head_and_nowhere_else() -> None:
    args = yaml.safe_load(RAYSERVICE["spec"]["serveConfigV2"])["applications"][0]["args"]
    for name, group in GROUPS.items():
        # KubeRay puts the value as it stands into a shell's command line.
        (value,) = shlex.split(group["rayStartParams"].get("resources", "{}"))
        assert (args["ray"]["resource"] in json.loads(value)) == (name != "head")
    asked = load(**{**args, "ray": {"address": "auto", **args["ray"]}}).ray.placement()
    options = ingress.deployment(lambda: None, asked).ray_actor_options
    assert (set(options["resources"]), options["num_cpus"]) == ({"muniment"}, 0)


def test_the_gpus_that_workers_reserve_are_there() -> None:
    workers = yaml.safe_load(RAYSERVICE["spec"]["serveConfigV2"])["applications"][0]["args"]["workers"]
    gpu = GROUPS["gpu"]
    per_pod = int(gpu["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert workers["count"] * workers["gpus_per_worker"] <= gpu["replicas"] * per_pod


def secrets_used() -> set[tuple[str, str]]:
    found = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "secretKeyRef" in node:
                found.add((node["secretKeyRef"]["name"], node["secretKeyRef"]["key"]))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk([RAYSERVICE, AROUND])
    return found


def test_the_guide_makes_every_secret_that_is_used() -> None:
    guide = (DEPLOY / "kuberay" / "GUIDE.md").read_text()
    made: set[tuple[str, str]] = set()
    for name, rest in re.findall(r"create secret generic (\S+)((?:[^\n]*\\\n)*[^\n]*)", guide):
        made |= {(name, key) for key in re.findall(r"--from-literal=([\w-]+)=", rest)}
    assert made == secrets_used()
    # Each variable of a command is set before.
    for match in re.finditer(r"\$(\w+)", guide):
        assert re.search(rf"^ +{match[1]}=", guide[: match.start()], re.MULTILINE), match[1]
    # What verifies a certificate names the authority: libpq's own default is a file that the image lacks.
    assert all("sslrootcert=/" in url for url in re.findall(r"\S+sslmode=verify-\S+", guide))
    assert "ca-certificates" in DOCKERFILE
    for file in re.findall(r"`(\w[\w./-]*\.(?:yaml|json|md))`", guide):
        assert (DEPLOY / "kuberay" / file).exists() or (DEPLOY / file).exists(), file


def test_what_stands_around_selects_the_pods_that_there_are() -> None:
    labels = [group["template"]["metadata"]["labels"] for group in GROUPS.values()]
    by_kind = {document["kind"]: document for document in AROUND}
    for kind, path in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        selector = by_kind[kind]["spec"][path]["matchLabels"]
        assert all(selector.items() <= one.items() for one in labels)
    pods = 1 + sum(group["replicas"] for group in CLUSTER["workerGroupSpecs"])
    assert {"minAvailable": pods - 1}.items() <= by_kind["PodDisruptionBudget"]["spec"].items()
    assert "maxUnavailable" not in by_kind["PodDisruptionBudget"]["spec"]
    monitor = yaml.safe_load((DEPLOY / "kuberay" / "podmonitor.yaml").read_text())["spec"]
    assert all(monitor["selector"]["matchLabels"].items() <= one.items() for one in labels)
    named = {port["name"]: port["containerPort"] for _, container in containers() for port in container["ports"]}
    for endpoint in monitor["podMetricsEndpoints"]:
        assert endpoint["port"] in named
    open_ports = {rule["port"] for one in by_kind["NetworkPolicy"]["spec"]["ingress"] for rule in one.get("ports", ())}
    assert open_ports == {named["http"], named["metrics"]}
    service, redis = by_kind["Service"], by_kind["StatefulSet"]
    address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert CLUSTER["gcsFaultToleranceOptions"]["redisAddress"] == address
    assert service["spec"]["selector"] == redis["spec"]["template"]["metadata"]["labels"]
    assert redis["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
