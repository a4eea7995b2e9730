"""A server that answers as Google Cloud's metadata server does."""

import http.server
import threading

import pytest


class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.removeprefix('/computeMetadata/v1/instance/')
        found = name in self.server.values and self.headers['Metadata-Flavor'] == 'Google'
        self.send_response(200 if found else 403)
        if self.server.flavor:
            self.send_header('Metadata-Flavor', self.server.flavor)
        self.end_headers()
        self.wfile.write(self.server.values.get(name, '').encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def metadata(monkeypatch):
    server = http.server.ThreadingHTTPServer(('localhost', 0), Metadata)
    server.values, server.flavor = {'maintenance-event': 'NONE', 'preempted': 'FALSE'}, 'Google'
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
    thread.start()
    monkeypatch.setenv('GCE_METADATA_HOST', f'localhost:{server.server_port}')
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
