#!/usr/bin/env python3
"""Carries out a rename map with rust-analyzer.

    rename.py ROOT MAP.tsv [--only KIND,KIND] [--log FILE]

MAP.tsv has the columns kind, file, line, old, new, reason. Kinds that are definitions in Rust (type, trait, variant, fn,
field, const, module, param) are renamed where they are defined and everywhere they are used; other kinds are skipped.
Each row that cannot be carried out is logged with its reason, and the others go on.
"""
import json, os, re, subprocess, sys, threading, queue, time, argparse, urllib.parse

RUST = {"type", "trait", "variant", "fn", "field", "const", "module", "param", "file"}


class Server:
    def __init__(self, root):
        self.root = root
        self.process = subprocess.Popen(["rust-analyzer"], cwd=root, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.answers, self.next, self.quiet = {}, 0, threading.Event()
        self.lock = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        options = {"checkOnSave": False, "diagnostics": {"enable": False}, "cachePriming": {"enable": False},
                   "cargo": {"allTargets": True, "features": "all", "targetDir": True}, "procMacro": {"enable": True},
                   "files": {"watcher": "client"}, "numThreads": 2}
        capabilities = {"workspace": {"workspaceEdit": {"documentChanges": True, "resourceOperations": ["rename", "create", "delete"]},
                                      "configuration": False, "didChangeWatchedFiles": {"dynamicRegistration": True}},
                        "textDocument": {"rename": {"prepareSupport": True}},
                        "window": {"workDoneProgress": True}, "experimental": {"serverStatusNotification": True},
                        "general": {"positionEncodings": ["utf-8"]}}
        self.ask("initialize", {"processId": os.getpid(), "rootUri": uri(root), "capabilities": capabilities,
                                "initializationOptions": options})
        self.tell("initialized", {})

    def send(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def read(self):
        out = self.process.stdout
        while True:
            length = 0
            while True:
                line = out.readline()
                if not line:
                    return
                if line in (b"\r\n", b"\n"):
                    break
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            message = json.loads(out.read(length))
            if "method" in message and "id" in message:
                result = [None] * len(message["params"].get("items", [])) if message["method"] == "workspace/configuration" else None
                self.send({"id": message["id"], "result": result})
            elif "id" in message:
                with self.lock:
                    self.answers[message["id"]] = message
                    self.lock.notify_all()
            elif message.get("method") == "experimental/serverStatus":
                status = message["params"]
                if status.get("quiescent"):
                    self.quiet.set()
                if status.get("message"):
                    print("rust-analyzer:", status["health"], status["message"][:400], flush=True)

    def ask(self, method, params, timeout=600):
        self.next += 1
        number = self.next
        self.send({"id": number, "method": method, "params": params})
        with self.lock:
            if not self.lock.wait_for(lambda: number in self.answers, timeout):
                raise RuntimeError(f"{method}: no answer within {timeout} s")
            answer = self.answers.pop(number)
        if "error" in answer:
            error = answer["error"]
            if error.get("code") in (-32801, -32802):  # content modified, cancelled
                time.sleep(0.2)
                return self.ask(method, params, timeout)
            raise RuntimeError(error.get("message"))
        return answer.get("result")

    def tell(self, method, params):
        self.send({"method": method, "params": params})


def uri(path):
    return "file://" + urllib.parse.quote(os.path.abspath(path))


def path_of(text):
    return urllib.parse.unquote(text[len("file://"):])


class Tree:
    """The sources as the server knows them."""

    def __init__(self, server, root):
        self.server, self.root, self.texts, self.version, self.moved = server, root, {}, 1, {}
        for folder, dirs, files in os.walk(root):
            dirs[:] = [d for d in dirs if d not in ("target", ".git", "node_modules")]
            for name in files:
                if name.endswith(".rs"):
                    self.open(os.path.join(folder, name))

    def open(self, path):
        with open(path, encoding="utf-8") as file:
            self.texts[path] = file.read()
        self.server.tell("textDocument/didOpen", {"textDocument": {"uri": uri(path), "languageId": "rust",
                                                                   "version": self.version, "text": self.texts[path]}})

    def current(self, path):
        while path in self.moved:
            path = self.moved[path]
        return path

    def change(self, path, edits):
        lines = self.texts[path].encode().split(b"\n")
        starts, total = [], 0
        for line in lines:
            starts.append(total)
            total += len(line) + 1
        data = self.texts[path].encode()
        spots = [(starts[e["range"]["start"]["line"]] + e["range"]["start"]["character"],
                  starts[e["range"]["end"]["line"]] + e["range"]["end"]["character"], e["newText"].encode()) for e in edits]
        for start, end, text in sorted(set(spots), reverse=True):
            data = data[:start] + text + data[end:]
        self.texts[path] = data.decode()
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.texts[path])
        self.version += 1
        self.server.tell("textDocument/didChange", {"textDocument": {"uri": uri(path), "version": self.version},
                                                    "contentChanges": [{"text": self.texts[path]}]})

    def apply(self, edit):
        count = 0
        for change in edit.get("documentChanges") or []:
            if change.get("kind") == "rename":
                old, new = path_of(change["oldUri"]), path_of(change["newUri"])
                self.move(old, new)
            elif "edits" in change:
                path = self.current(path_of(change["textDocument"]["uri"]))
                self.change(path, change["edits"])
                count += len(change["edits"])
        for where, edits in (edit.get("changes") or {}).items():
            self.change(self.current(path_of(where)), edits)
            count += len(edits)
        return count

    def move(self, old, new):
        inside = [p for p in self.texts if p == old or p.startswith(old + "/")]
        os.makedirs(os.path.dirname(new), exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=self.root, check=True)
        changed = []
        for path in inside:
            to = new + path[len(old):]
            self.server.tell("textDocument/didClose", {"textDocument": {"uri": uri(path)}})
            self.texts.pop(path)
            self.moved[path] = to
            changed += [{"uri": uri(path), "type": 3}, {"uri": uri(to), "type": 1}]
        self.server.tell("workspace/didChangeWatchedFiles", {"changes": changed})
        for path in inside:
            self.open(new + path[len(old):])
        time.sleep(0.5)


def pattern(kind, name):
    word = re.escape(name)
    if kind == "type":
        return rf"\b(?:struct|enum|type|union)\s+({word})\b"
    if kind == "trait":
        return rf"\btrait\s+({word})\b"
    if kind == "fn":
        return rf"\bfn\s+({word})\b"
    if kind == "const":
        return rf"\b(?:const|static)\s+({word})\b"
    if kind in ("module", "file"):
        return rf"\bmod\s+({word})\b"
    if kind == "field":
        return rf"(?:^|[\s({{,])({word})\s*:(?!:)"
    if kind == "variant":
        return rf"^\s*({word})\b"
    return rf"\b({word})\s*:(?!:)"


def find(text, kind, name, near):
    """The definition nearest to a line."""
    best = None
    for number, line in enumerate(text.split("\n")):
        code = line.split("//")[0]
        for match in re.finditer(pattern(kind, name), code):
            distance = abs(number + 1 - near)
            if best is None or distance < best[0]:
                best = (distance, number, len(line[:match.start(1)].encode()))
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("map")
    parser.add_argument("--only")
    parser.add_argument("--log", default="rename.log")
    args = parser.parse_args()
    root = os.path.abspath(args.root)
    rows = []
    for line in open(args.map, encoding="utf-8"):
        parts = line.rstrip("\n").split("\t")
        if len(parts) < 5 or parts[0] not in RUST or (args.only and parts[0] not in args.only.split(",")):
            continue
        rows.append(parts)
    server = Server(root)
    tree = Tree(server, root)
    begun = time.time()
    print("waiting for rust-analyzer", flush=True)
    server.quiet.wait(1200)
    print(f"ready after {time.time() - begun:.0f} s; {len(rows)} rows", flush=True)
    done = failed = 0
    with open(args.log, "w") as log:
        for number, (kind, file, line, old, new, *_) in enumerate(rows):
            name = re.split(r"::|\.", old.strip("` "))[-1].split("(")[0].strip()
            if kind == "param" and "(" in old:
                name = old.split("(")[1].rstrip(") `")
            target = re.split(r"::|\.", new.strip("` "))[-1].split("(")[0].strip()
            try:
                path = tree.current(os.path.join(root, file))
                if path not in tree.texts and os.path.isabs(file):
                    tree.open(path)
                if path not in tree.texts:
                    raise RuntimeError("no such file")
                if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", target):
                    raise RuntimeError(f"not a name: {target}")
                spot = find(tree.texts[path], kind, name, int(line or 1))
                if spot is None:
                    raise RuntimeError("definition not found")
                where = {"textDocument": {"uri": uri(path)}, "position": {"line": spot[1], "character": spot[2]}}
                edit = server.ask("textDocument/rename", {**where, "newName": target})
                if not edit:
                    raise RuntimeError("nothing to rename")
                count = tree.apply(edit)
                done += 1
                log.write(f"ok\t{kind}\t{file}\t{old}\t{target}\t{count}\n")
            except RuntimeError as error:
                failed += 1
                log.write(f"FAILED\t{kind}\t{file}\t{line}\t{old}\t{target}\t{error}\n")
            log.flush()
            if number % 50 == 49:
                print(f"{number + 1} of {len(rows)}, {failed} failed, {time.time() - begun:.0f} s", flush=True)
    print(f"{done} done, {failed} failed, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
