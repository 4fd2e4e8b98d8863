"""A loopback W&B backend: what a client needs of it to open, resume and sync runs."""

import gzip
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from hub_stub import Quiet

ENTITY = "loopback"
KEY = "0" * 40  # the client checks the length of an API key before it uses it


@dataclass(kw_only=True)
class StoredRun:
    """What the backend has received of a run."""

    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The logged rows, without the keys that the client adds."""
        return [{k: v for k, v in row.items() if not k.startswith("_")} for row in self.history]


class WandbBackend(ThreadingHTTPServer):
    """Serves on a free port of the loopback interface until the context ends.

    `status` is answered to every request; anything but 200 makes the backend useless.
    `stream_status` is answered to the file stream alone: the run opens, but its rows are refused.
    """

    def __init__(self, *, status: int = 200, stream_status: int = 200) -> None:
        self.status, self.stream_status = status, stream_status
        self.runs: dict[str, StoredRun] = {}
        self.reports: list[str] = []  # specifications
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Passes over clients that hang up; they do when they time out or end."""

    def receive(self, run_id: str, chunk: Mapping[str, Any]) -> None:
        """Takes one request of a run's file stream; lines are addressed by their offset."""
        run = self.runs.setdefault(run_id, StoredRun())
        for name, part in (chunk.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                lines = [json.loads(line) for line in part["content"]]
                run.history[part["offset"] : part["offset"] + len(lines)] = lines
            elif name == "wandb-summary.json":
                run.summary = json.loads(part["content"][-1])

    def resolve(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Answers one GraphQL operation by its name; unknown ones with nothing."""
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)
        project = {"id": "p", "name": variables.get("project") or "uncategorized"}
        project["entity"] = {"id": "e", "name": variables.get("entity") or ENTITY}
        name = variables.get("name", "")
        match operation[1] if operation else "":
            case "Viewer" | "QueryViewer" | "GetDefaultEntity":
                who = {"id": "u", "entity": ENTITY, "username": ENTITY, "flags": "{}"}
                return {"viewer": {**who, "teams": {"edges": []}}}
            case "UpsertBucket":
                inserted, run = name not in self.runs, self.runs.setdefault(name, StoredRun())
                run.variables |= {k: v for k, v in variables.items() if v is not None}
                bucket = {**_bucket(name, run), "description": None, "project": project}
                return {"upsertBucket": {"inserted": inserted, "bucket": bucket}}
            case "RunResumeStatus":
                run = self.runs.get(name)
                return {"model": {**project, "bucket": run and _bucket(name, run)}}
            case "CreateRunFiles":
                names = variables.get("files") or []
                files = [self._file(name, variables["run"]) for name in names]
                return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
            case "ProjectInternalId":
                return {"project": {"internalId": "p"}}
            case "GetProjects":
                about = {"id": "p", "createdAt": "", "isBenchmark": False, "user": None}
                node = {**about, "name": "lengthgen", "entityName": ENTITY}
                page = {"endCursor": None, "hasNextPage": False}
                return {"models": {"edges": [{"cursor": "", "node": node}], "pageInfo": page}}
            case "upsertView":
                self.reports.append(variables["spec"])
                return {"upsertView": {"view": {"id": "v", "spec": "{}"}, "inserted": True}}
            case "ArtifactType":
                return {"project": {"artifact": None}}
            case "CreateArtifact":  # its id is that of the run, whose files it will be
                artifact = {"id": variables["input"]["runName"], "state": "PENDING"}
                sequence = {"id": "s", "latestArtifact": None}
                return {"createArtifact": {"artifact": {**artifact, "artifactSequence": sequence}}}
            case "CreateArtifactManifest":
                manifest = {"id": "m", "file": self._file("manifest.json", variables["runName"])}
                return {"createArtifactManifest": {"artifactManifest": manifest}}
            case "CreateArtifactFiles":
                wanted = variables["input"]["artifactFiles"]
                nodes = [{"node": self._file(f["name"], f["artifactID"])} for f in wanted]
                return {"createArtifactFiles": {"files": {"edges": nodes}}}
            case "CommitArtifact":
                return {"commitArtifact": {"artifact": {"id": "a", "digest": "d"}}}
            case _:
                return {"TypeInfo": None, "QueryType": None, "MutationType": None, "__type": None}

    def _file(self, name: str, run: str) -> dict[str, Any]:
        url = f"{self.url}/storage/{run}/{name}"
        about = {"id": "f", "name": name, "displayName": name, "storagePath": name}
        return {**about, "uploadUrl": url, "uploadHeaders": [], "artifact": {"id": run}}


def _bucket(name: str, run: StoredRun) -> dict[str, Any]:
    tail = json.dumps([json.dumps(row) for row in run.history[-1:]])
    return {
        **{"id": name, "name": name, "displayName": run.variables.get("displayName", name)},
        **{"config": run.variables.get("config", "{}"), "sweepName": None, "tags": []},
        **{"summaryMetrics": json.dumps(run.summary), "wandbConfig": '{"t": {}}'},
        **{"historyLineCount": len(run.history), "historyTail": tail},
        **{"eventsLineCount": 0, "eventsTail": "[]", "logLineCount": 0},
    }


class Handler(Quiet):
    server: WandbBackend  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        backend, answer = self.server, dict[str, Any]()
        if stored := re.fullmatch(r"/storage/([^/]+)/(.+)", self.path):
            backend.runs[stored[1]].files[unquote(stored[2])] = body
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
        status = backend.stream_status if stream and backend.status == 200 else backend.status
        if self.command == "POST" and status == 200 and stream:
            backend.receive(stream[1], json.loads(body))
            answer = {"exitcode": None, "limits": {}}
        elif self.command == "POST" and status == 200 and self.path == "/graphql":
            asked = json.loads(body)
            answer = {"data": backend.resolve(asked["query"], asked.get("variables") or {})}
        about = {"content-type": "application/json"}
        self.reply(answer, status if self.command == "POST" else 200, about)

    do_GET = do_PUT = do_POST
