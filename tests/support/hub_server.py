"""A loopback stand-in for the read side of the Hugging Face Hub: folders served as data sets."""

import hashlib
import json
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@contextmanager
def hub(repositories: Mapping[str, Path]) -> Generator[str]:
    """Serves each folder under its repository name; gives the value of HF_ENDPOINT."""

    class Handler(_Handler):
        folders = repositories

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folders: Mapping[str, Path]

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        file = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        api = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/([^/]+)(?:/[^/]+(?:/(.*))?)?)?", path)
        if file and file[1] in self.folders:
            self._file(self.folders[file[1]] / file[2])
        elif api and api[1] in self.folders:
            self._api(api[1], api[2], api[3] or "")
        else:
            self._missing("RepoNotFound")

    do_HEAD = do_GET
    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the requests out of the output of the tests."""

    def _api(self, repository: str, question: str | None, below: str) -> None:
        folder = self.folders[repository]
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
        if question in (None, "revision"):
            siblings = [{"rfilename": name} for name, path in files.items() if path.is_file()]
            flags = {"private": False, "gated": False, "disabled": False}
            counts = {"downloads": 0, "likes": 0, "tags": []}
            about = {"id": repository, "sha": COMMIT, "siblings": siblings}
            self._json(about | flags | counts)
        elif question == "tree":
            if below and below not in files:
                self._missing("EntryNotFound")
                return
            recursive = "recursive=true" in self.path.lower()
            inside = {n: p for n, p in files.items() if n.startswith(f"{below}/" if below else "")}
            depth = below.count("/") + 2 if below else 1
            chosen = [n for n in inside if recursive or len(n.split("/")) == depth]
            self._json([_entry(name, files[name]) for name in chosen])
        elif question == "paths-info":
            asked = self._body().get("paths", [])
            names = [asked] if isinstance(asked, str) else asked
            self._json([_entry(name, files[name]) for name in names if name in files])
        else:
            self._missing("EntryNotFound")

    def _body(self) -> dict[str, Any]:
        content = self.rfile.read(int(self.headers["content-length"])).decode()
        if "json" in self.headers["content-type"]:
            return json.loads(content)
        return dict(parse_qs(content))

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._missing("EntryNotFound")
            return
        content = path.read_bytes()
        headers = {
            "ETag": f'"{_digest(content)}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked is None:
            self._send(200, content, headers)
            return
        part = content[int(asked[1]) : int(asked[2]) + 1 if asked[2] else None]
        last = int(asked[1]) + len(part) - 1
        headers["Content-Range"] = f"bytes {asked[1]}-{last}/{len(content)}"
        self._send(206, part, headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str) -> None:
        self._send(404, b"{}", {"Content-Type": "application/json", "X-Error-Code": code})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(name: str, path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {"type": "directory", "oid": _digest(name.encode()), "size": 0, "path": name}
    content = path.read_bytes()
    return {"type": "file", "oid": _digest(content), "size": len(content), "path": name}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
