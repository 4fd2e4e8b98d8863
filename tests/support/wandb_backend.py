"""A loopback W&B backend: what a client needs of it to open, resume and sync runs."""

import base64
import gzip
import json
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

ENTITY = "loopback"
KEY = "0" * 40  # the client checks the length of an API key before it uses it


@dataclass(kw_only=True)
class StoredRun:
    """What the backend has received of one run."""

    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    history: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    exit_code: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The logged rows, without the keys that the client adds."""
        return [
            {key: value for key, value in row.items() if not key.startswith("_")}
            for row in self.history
        ]


class WandbBackend:
    """Serves on a free port of the loopback interface until the context ends.

    `status` is answered to every request; anything but 200 makes the backend useless.
    `stream_status` is answered to the file stream alone: the run opens, but its rows are refused.
    """

    def __init__(self, *, status: int = 200, stream_status: int = 200) -> None:
        self.status = status
        self.stream_status = stream_status
        self.runs: dict[str, StoredRun] = {}
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Keeps the test's output free of access logs."""

            def do_GET(self) -> None:
                self._answer({})

            def do_PUT(self) -> None:
                stored = re.fullmatch(r"/storage/([^/]+)/(.+)", self.path)
                body = self._body()
                if stored:
                    backend.runs[stored[1]].files[unquote(stored[2])] = body
                self._answer({})

            def do_POST(self) -> None:
                body = self._body()
                stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
                if backend.status != 200:
                    self._answer({}, status=backend.status)
                elif stream and backend.stream_status != 200:
                    self._answer({}, status=backend.stream_status)
                elif stream:
                    backend.receive(stream[1], json.loads(body))
                    self._answer({"exitcode": None, "limits": {}})
                elif self.path == "/graphql":
                    request = json.loads(body)
                    data = backend.resolve(request["query"], request.get("variables") or {})
                    self._answer({"data": data})
                else:
                    self._answer({})

            def _body(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                zipped = self.headers.get("content-encoding") == "gzip"
                return gzip.decompress(body) if zipped else body

            def _answer(self, content: Mapping[str, Any], *, status: int = 200) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Passes over clients that hang up; they do when they time out or end."""
                if not isinstance(sys.exception(), ConnectionError):
                    super().handle_error(request, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def receive(self, run_id: str, chunk: Mapping[str, Any]) -> None:
        """Takes one request of a run's file stream; lines are addressed by their offset."""
        run = self.runs.setdefault(run_id, StoredRun())
        for name, part in (chunk.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"] if name.endswith((".json", "l"))]
            if name == "wandb-history.jsonl":
                run.history[part["offset"] : part["offset"] + len(lines)] = lines
            elif name == "wandb-summary.json":
                run.summary = lines[-1]
        if chunk.get("complete"):
            run.exit_code = chunk.get("exitcode")

    def resolve(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Answers one GraphQL operation by its name; unknown ones with nothing."""
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)
        match operation[1] if operation else "":
            case "Viewer" | "QueryViewer":
                return {
                    "viewer": {
                        "id": "u",
                        "entity": ENTITY,
                        "username": ENTITY,
                        "flags": "{}",
                        "teams": {"edges": []},
                    }
                }
            case "UpsertBucket":
                return self._upsert(variables)
            case "RunResumeStatus":
                return self._resume_status(variables)
            case "CreateRunFiles":
                files = [
                    {"name": name, "uploadUrl": f"{self.url}/storage/{variables['run']}/{name}"}
                    for name in variables.get("files") or []
                ]
                return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
            case _:
                return {"TypeInfo": None, "QueryType": None, "MutationType": None, "__type": None}

    def _upsert(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        run_id = variables["name"]
        inserted = run_id not in self.runs
        run = self.runs.setdefault(run_id, StoredRun())
        run.variables |= {key: value for key, value in variables.items() if value is not None}
        bucket = {
            "id": base64.b64encode(run_id.encode()).decode(),
            "name": run_id,
            "displayName": run.variables.get("displayName", run_id),
            "description": None,
            "config": run.variables.get("config"),
            "sweepName": None,
            "historyLineCount": len(run.history),
            "project": _project(variables.get("project")),
        }
        return {"upsertBucket": {"inserted": inserted, "bucket": bucket}}

    def _resume_status(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        model = _project(variables.get("project"))
        run = self.runs.get(variables["name"])
        if run is None:
            return {"model": {**model, "bucket": None}}
        bucket = {
            "id": "b",
            "name": variables["name"],
            "displayName": variables["name"],
            "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.history),
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
            "config": run.variables.get("config", "{}"),
            "tags": [],
            "wandbConfig": '{"t": {}}',
        }
        return {"model": {**model, "bucket": bucket}}


def _project(name: str | None) -> dict[str, Any]:
    return {"id": "p", "name": name or "uncategorized", "entity": {"id": "e", "name": ENTITY}}
