"""cluster.yaml and clusters/: what Ray and KubeRay accept, and what every one of them must say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

from pipelines import PACKAGES

ROOT = Path(__file__).parents[1]
LAUNCHED = ("cluster.yaml", "clusters/aws.yaml", "clusters/gcp.yaml")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_accepts_it(name: str) -> None:
    schema = json.loads(Path(ray.autoscaler.__file__).with_name("ray-schema.json").read_text())
    jsonschema.validate(read(name), schema)
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(read(name)))


def test_ray_refuses_what_it_should_so_that_the_test_above_means_something() -> None:
    schema = json.loads(Path(ray.autoscaler.__file__).with_name("ray-schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**read("cluster.yaml"), "file_mountz": {}}, schema)


@pytest.mark.parametrize("name", LAUNCHED)
def test_it_brings_the_project_the_token_and_the_environment_and_hides_the_dashboard(name: str) -> None:
    config = read(name)
    mounts = config["file_mounts"]
    for package in (*PACKAGES, "clusters"):
        assert mounts[f"~/throughline/{package}"] == package and (ROOT / package).is_dir()
    assert all((ROOT / source).exists() for source in mounts.values() if not source.startswith("~"))
    assert mounts["~/.ray/auth_token"] == "~/.ray/auth_token" and "~/.throughline.sh" in mounts
    assert any("setup_node.sh" in command for command in config["setup_commands"])
    start = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in start and "--autoscaling-config=~/ray_bootstrap_config.yaml" in start


@pytest.mark.parametrize("name", ["clusters/aws.yaml", "clusters/gcp.yaml"])
def test_gpu_machines_come_and_go(name: str) -> None:
    config = read(name)
    assert config["available_node_types"]["gpu"]["min_workers"] == 0 < config["max_workers"]
    assert config["idle_timeout_minutes"] > 0


# What KubeRay 1.5.1 knows (apis/ray/v1/raycluster_types.go, rayjob_types.go); its CRD itself is not among the packages.
CLUSTER = {
    "headGroupSpec",
    "workerGroupSpecs",
    "rayVersion",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "authOptions",
}
HEAD = {"serviceType", "rayStartParams", "template"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
JOB = {"entrypoint", "runtimeEnvYAML", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit"}
JOB |= {"submissionMode", "rayClusterSpec"}


def kuberay() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Both files: the whole document, and the cluster in it."""
    cluster, job = read("clusters/kuberay-raycluster.yaml"), read("clusters/kuberay-rayjob.yaml")
    return [(cluster, cluster["spec"]), (job, job["spec"]["rayClusterSpec"])]


@pytest.mark.parametrize(("document", "spec"), kuberay(), ids=["RayCluster", "RayJob"])
def test_kuberay_files_have_its_fields_and_no_others(document: dict[str, Any], spec: dict[str, Any]) -> None:
    assert document["apiVersion"] == "ray.io/v1" and document["metadata"]["name"]
    assert document["kind"] in ("RayCluster", "RayJob")
    assert set(spec) <= CLUSTER and {"headGroupSpec", "workerGroupSpecs"} <= set(spec)
    assert set(spec["headGroupSpec"]) <= HEAD
    if document["kind"] == "RayJob":
        assert set(document["spec"]) <= JOB
        assert yaml.safe_load(document["spec"]["runtimeEnvYAML"]) == {"working_dir": "/opt/throughline"}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={spec['rayVersion']}" in pins
    assert spec["authOptions"] == {
        "mode": "token"
    }  # the autoscaler and a job's submitter have their token from it alone
    templates = [spec["headGroupSpec"]["template"]]
    for group in spec["workerGroupSpecs"]:
        assert set(group) <= WORKERS and group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        templates.append(group["template"])
    for template in templates:
        (container,) = template["spec"]["containers"]
        names = {volume["name"] for volume in template["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names
        environment = {entry["name"]: entry for entry in container["env"]}
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & set(
            environment
        )  # the operator sets them, and where we cannot: see below
        assert environment["RAY_worker_niceness"]["value"] == "0"
        assert container["resources"]["limits"] == container["resources"]["requests"]
    for params in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in params["rayStartParams"].values())


def test_the_environment_may_be_read_twice_and_keeps_what_a_job_has_set(tmp_path: Path) -> None:
    """A shell that Ray starts for a worker reads it again, after Ray has put the job's code into PYTHONPATH."""
    file = f"{ROOT}/clusters/environment.sh"
    script = f"set -eu; . {file}; . {file}; echo $PYTHONPATH; echo $THROUGHLINE_HOME"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": "/job", "THROUGHLINE_HOME": "/there"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"/job:{tmp_path}/throughline", "/there"]


def test_workers_are_as_urgent_as_what_runs_beside_them_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    for given, niceness in {None: "0", "7": "7"}.items():
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"} | (
            {"RAY_worker_niceness": given} if given else {}
        )
        script = f"set -eu; . {ROOT}/clusters/environment.sh; echo $RAY_worker_niceness"
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == niceness


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_node_takes_an_images_environment_and_leaves_it_whole_when_it_makes_its_own(tmp_path: Path) -> None:
    home, image = tmp_path / "home", tmp_path / "image"
    ours = home / "throughline-environment"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("token")
    (home / "throughline" / "clusters").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "clusters/environment.sh"):
        shutil.copy(ROOT / name, home / "throughline" / name)
    shutil.copy(ROOT / "clusters" / "environment.sh", home / ".throughline.sh")
    executable(image / "bin" / "python", "exit 0")
    # An environment without the packages, which would take minutes to install: `pip` does nothing, and `import ray` is left out.
    made = f"python3 -m venv --without-pip $(echo $* | sed 's/-m venv//') && cp {image}/bin/python {ours}/bin/pip"
    executable(
        tmp_path / "python",
        f'[ "$1" = -c ] || {{ {made} && cp --remove-destination {image}/bin/python {ours}/bin/python; }}',
    )

    def set_up(**more: str) -> None:
        environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "THROUGHLINE_HOME": str(tmp_path / "shared"),
            **more,
        }
        done = subprocess.run(
            ["bash", f"{ROOT}/clusters/setup_node.sh"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    for _ in range(2):
        set_up(PYTHON=str(tmp_path / "python"))
        assert not ours.is_symlink() and (ours / "pyvenv.cfg").exists() and (ours / ".complete").exists()
        for _ in range(2):
            set_up(THROUGHLINE_ENVIRONMENT=str(image))
            assert ours.is_symlink() and ours.resolve() == image
    set_up(PYTHON=str(tmp_path / "python"))
    assert not ours.is_symlink()
    assert [path.name for path in image.rglob("*")] == ["bin", "python"]
    for name in (".throughline.sh", ".ray/auth_token", "throughline/clusters/environment.sh"):
        assert (home / name).stat().st_mode & 0o777 == 0o600, f"others can read the secrets in {name}"
    (home / "throughline" / "clusters" / "environment.sh").unlink()  # as in a package of ours
    set_up(THROUGHLINE_ENVIRONMENT=str(image))


def test_an_image_holds_no_secrets() -> None:
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", "runs"} < set(left_out)
    for line in (ROOT / ".rayignore").read_text().splitlines():
        assert line.startswith("#") or line in left_out


@pytest.mark.parametrize("name", ["kuberay-raycluster", "kuberay-rayjob"])
def test_a_cluster_that_begins_without_gpus_is_asked_for_them(name: str) -> None:
    text = (ROOT / "clusters" / f"{name}.yaml").read_text()
    assert "--use-gpu yes" in text or "use_gpu=yes" in text


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_scripts_are_whole() -> None:
    for script in ("clusters/environment.sh", "clusters/setup_node.sh"):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
