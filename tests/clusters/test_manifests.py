"""The manifests of examples/cluster/kubernetes, and what their containers do, without a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from stashtrace.loading.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "examples" / "cluster" / "kubernetes").glob("*.yaml"))


def manifest(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def pods(path: Path) -> list[dict[str, Any]]:
    spec = manifest(path)["spec"]
    replicas = spec.get("pytorchReplicaSpecs", {"": spec})
    return [replica["template"]["spec"] for replica in replicas.values()]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_fit_the_schema_of_kubernetes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for spec in pods(path):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
        validate(pod, "1.28", strict=True)
    if manifest(path)["kind"] == "Job":
        validate(manifest(path), "1.28", strict=True)


def strange(models: Any, kind: str, content: Any, where: str) -> list[str]:
    """Return what a model of the operator does not know or allow; pods are those of Kubernetes."""
    inner = re.fullmatch(r"(?:dict\(str, |list\[)(\w+)[)\]]", kind)
    if inner is not None:
        parts = content.items() if isinstance(content, dict) else enumerate(content)
        return [one for key, part in parts for one in strange(models, inner[1], part, f"{where}.{key}")]
    if not kind.startswith("KubeflowOrg"):
        types = {"str": str, "int": int, "bool": bool, "V1PodTemplateSpec": dict, "V1ObjectMeta": dict}
        return [] if isinstance(content, types[kind]) else [f"{where} is no {kind}"]
    model = getattr(models, kind)
    fields = {key: name for name, key in model.attribute_map.items()}
    found = [f"{where}.{key} is unknown" for key in content if key not in fields]
    given = {fields[key]: value for key, value in content.items() if key in fields}
    try:
        model(**given)  # what is required, and which values there are
    except ValueError as error:
        found.append(f"{where}: {error}")
    for name, value in given.items():
        found += strange(models, model.openapi_types[name], value, f"{where}.{model.attribute_map[name]}")
    return found


def test_the_pytorchjob_is_one_of_the_operator() -> None:
    models = pytest.importorskip("kubeflow.training.models")
    job = manifest(next(path for path in MANIFESTS if path.stem == "pytorchjob"))
    assert strange(models, "KubeflowOrgV1PyTorchJob", job, "job") == []
    # The check sees what is wrong, in a key and in what is missing.
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = 3
    assert strange(models, "KubeflowOrgV1PyTorchJob", job, "job") == [
        "job.spec.pytorchReplicaSpecs.Worker.replica is unknown"
    ]
    del job["spec"]["pytorchReplicaSpecs"]
    (said,) = strange(models, "KubeflowOrgV1PyTorchJob", job, "job")
    assert "pytorch_replica_specs" in said


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_both_containers_see_the_same_volumes_and_names(path: Path) -> None:
    for spec in pods(path):
        (init,), (container,) = spec["initContainers"], spec["containers"]
        for part in ("env", "volumeMounts"):
            assert init[part] == container[part]
        assert {mount["name"] for mount in init["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_containers_record_a_job_that_has_no_stashtrace(path: Path, tmp_path: Path) -> None:
    """Their commands as they stand, with folders for the volumes; the job's Python is a bare one."""
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    job = tmp_path / "train.py"
    job.write_text("import sys\nassert 'numpy' not in sys.modules\nopen(__file__).read()\n")
    own = tmp_path / "bin" / "stashtrace"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -P -m stashtrace "$@"\n')
    own.chmod(0o755)
    (tmp_path / "stashtrace").mkdir()

    def here(word: str) -> str:
        return word.replace("/stashtrace", f"{tmp_path}/stashtrace").replace("/runs", f"{tmp_path}/runs")

    spec = pods(path)[0]
    (init,), (container,) = spec["initContainers"], spec["containers"]
    names = {"JOB_NAME": "train-7", "POD_NAME": "train-0", "NODE_NAME": "node3", "HOME": str(tmp_path)}
    path_of_init = {"PATH": f"{own.parent}:{os.environ['PATH']}"}
    subprocess.run([*init["command"], *map(here, init["args"])], env=names | path_of_init, check=True, timeout=120)
    assert not (tmp_path / "stashtrace/stashtrace/cli").exists(), "only what traced processes need"
    command = [*map(here, container["command"]), str(bare / "bin/python"), str(job)]
    subprocess.run(command, env=names | {"PATH": os.environ["PATH"]}, check=True, timeout=120)
    trace = load_trace(tmp_path / "runs/train-7")
    read = [trace.text(code) for code in trace.io["path_code"]]
    assert str(job) in read
