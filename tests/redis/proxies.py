"""Who stands between a worker and its server."""

import select
import socket
import threading


class Proxy:
    """Listens on `port`; `serve(client)` has each connection in a thread of its own."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._guarded, args=(client,), daemon=True).start()

    def _guarded(self, client):
        with client:
            try:
                self.serve(client)
            except OSError:
                pass

    def relay(self, client, wants=lambda answer: True):
        """Both ways until one end closes, or an answer comes that `wants` refuses."""
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            other = {client: server, server: client}
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(1 << 20)
                    if not data or end is server and not wants(data):
                        return
                    other[end].sendall(data)

    def close(self):
        self.listener.close()


class Swallower(Proxy):
    """Keeps back the first answer that holds `words`, and ends that line."""

    swallowed = False

    def __init__(self, target, words):
        self.words = words
        Proxy.__init__(self, target)

    def serve(self, client):
        self.relay(client, self._wants)

    def _wants(self, answer):
        if self.words in answer and not self.swallowed:
            self.swallowed = True
            return False
        return True


class Fake(Proxy):
    """Says one and the same trouble until it is well; then it passes all on."""

    said, is_well = 0, False

    def __init__(self, target, trouble):
        self.trouble = trouble.encode("latin-1") + b"\r\n"
        Proxy.__init__(self, target)

    def serve(self, client):
        if self.is_well:
            self.relay(client)
            return
        while client.recv(1 << 20) and not self.is_well:
            self.said += 1
            client.sendall(self.trouble)
