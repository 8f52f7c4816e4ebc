"""Keys and certificates, addresses, and commands that are given wrong things: one clear sentence, exit code 2."""

from __future__ import annotations

import datetime
import shutil
import socket
import stat

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography import x509

from fedquilt.deploy import keys as module
from fedquilt.deploy.flower_command import Address
from fedquilt.deploy.keys import Keys, check_node_key, make
from fedquilt.errors import InputError
from helpers.command import fedquilt, small


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("keys") / "keys"
    make(place, ["server.example.org", "10.0.0.5"], ["oslo", "bergen"])
    return place


def test_keys_are_for_their_owner_and_certificates_name_the_server(folder):
    assert mode(folder) == mode(folder / "nodes") == 0o700
    for key in ("ca.key", "server.key", "nodes/oslo", "nodes/bergen"):
        assert mode(folder / key) == 0o600
    keys = Keys(folder)
    keys.check_server()
    check_node_key(keys.node("oslo"))
    found = x509.load_pem_x509_certificate(keys.server[0].read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "127.0.0.1"]
    assert [p.name for p in keys.public] == ["bergen.pub", "oslo.pub"]


def test_what_is_there_is_kept_and_renewing_makes_only_a_server_certificate(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "keys")
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    assert make(place, ["server.example.org"], ["oslo"]) == []
    assert sorted(p.name for p in make(place, ["other.example.org"], [], renew=True)) == ["server.key", "server.pem"]
    assert {p.name for p, content in before.items() if p.read_bytes() != content} == {"server.key", "server.pem"}
    Keys(place).check_server()


def test_a_public_key_whose_private_one_went_to_its_site_is_kept(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "keys")
    before = (place / "nodes" / "oslo.pub").read_bytes()
    (place / "nodes" / "oslo").unlink()
    made = make(place, ["server.example.org"], ["oslo", "bergen", "narvik"])
    assert sorted(p.name for p in made) == ["narvik", "narvik.pub"]
    assert (place / "nodes" / "oslo.pub").read_bytes() == before


def test_a_ca_key_is_never_replaced(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "keys")
    (place / "ca.crt").unlink()
    with pytest.raises(InputError, match="Put the certificate back"):
        make(place, ["server.example.org"], [])
    assert (place / "ca.key").read_bytes() == (folder / "ca.key").read_bytes()
    shutil.copy(folder / "ca.crt", place / "ca.crt")
    (place / "ca.key").write_text("garbage")
    with pytest.raises(InputError, match="cannot be read as a private key"):
        make(place, ["server.example.org"], [], renew=True)
    make(tmp_path / "others", ["server.example.org"], [])
    shutil.copy(tmp_path / "others" / "ca.key", place / "ca.key")
    with pytest.raises(InputError, match="is not the key of"):
        make(place, ["server.example.org"], [], renew=True)


def test_an_expired_a_foreign_and_a_mismatched_certificate_are_refused(folder, tmp_path, monkeypatch):
    place = shutil.copytree(folder, tmp_path / "keys")
    make(tmp_path / "others", ["server.example.org"], [])
    shutil.copy(tmp_path / "others" / "ca.crt", place / "ca.crt")
    with pytest.raises(InputError, match="was not issued by"):
        Keys(place).check_server()
    shutil.copy(folder / "ca.crt", place / "ca.crt")
    shutil.copy(tmp_path / "others" / "server.key", place / "server.key")
    with pytest.raises(InputError, match="is not the key of"):
        Keys(place).check_server()
    (place / "server.pem").write_text("garbage")
    with pytest.raises(InputError, match="cannot be read as a certificate"):
        Keys(place).check_server()

    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return later

    monkeypatch.setattr(module.datetime, "datetime", Later)
    with pytest.raises(InputError, match=r"server\.pem' expired on .*--renew"):
        Keys(folder).check_server()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a.pub", "x" * 101])
def test_bad_names_of_nodes(name, tmp_path):
    with pytest.raises(InputError, match="A node's name"):
        make(tmp_path, ["localhost"], [name])


@pytest.mark.parametrize("host", ["", "a b", "ex\u00e4mple.org", "http://x", "-x", "x" * 254, "a/b"])
def test_bad_names_of_hosts(host, tmp_path):
    with pytest.raises(InputError, match="A host is a name"):
        make(tmp_path, [host], [])


def test_long_host_names_fit(tmp_path):
    make(tmp_path, ["a" * 63 + ".example.org"], [])  # the common name of a certificate has 64 characters at most
    Keys(tmp_path).check_server()


@pytest.mark.parametrize("text", ["", "x", "x:", ":80", "x:0", "x:65536", "x:-1", "x:8o", "a b:80", "http://x:80"])
def test_bad_addresses(text):
    with pytest.raises(InputError, match="must be HOST:PORT"):
        Address.of(text)


def test_addresses():
    assert str(Address.of("[::1]:80")) == "[::1]:80"
    inside = [Address(h, 80).is_loopback for h in ("127.0.0.1", "127.3.4.5", "::1", "localhost")]
    outside = [Address(h, 80).is_loopback for h in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org")]
    assert (all(inside), any(outside)) == (True, False)


@pytest.fixture(scope="module")
def here(tmp_path_factory, folder):
    place = tmp_path_factory.mktemp("commands")
    np.savez(place / "rows.npz", x=np.zeros((8, 2), "float32"), y=np.arange(8) % 2)
    recipe = small(place)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield {
            "recipe": recipe,
            "data": place / "rows.npz",
            "keys": folder,
            "none": place / "none",
            "taken": taken.getsockname()[1],
            "state": place / "state",
        }


WRONG = [
    ("serve {recipe}", "needs keys"),
    ("serve {recipe} --keys {keys} --insecure", "mutually exclusive"),
    ("serve {recipe} --insecure --host 0.0.0.0", "plain text"),
    ("serve {recipe} --insecure --port 0", "HOST:PORT"),
    ("serve {recipe} --insecure --superlink nowhere", "HOST:PORT"),
    ("serve {recipe} --insecure --superlink far.example.org:8000", "plain text"),
    ("serve {recipe} --keys {none}", "Make the keys first"),
    ("serve {recipe} --insecure --port {taken}", "Something listens"),
    ("serve {none} --insecure", "none"),
    ("keys {none}", "--host"),
    ("keys {none} --renew", "--renew needs"),
    ("keys {none} --host localhost --days 0", "1 to 36500 days"),
    ("keys {recipe} --host localhost", "cannot be a folder for keys: File exists"),
    ("export {recipe}", "--flower DIR"),
    ("export {recipe} --flower {recipe}", "holds something else"),
    ("export {recipe} --flower {keys}", "holds something else"),
    ("join --superlink x:1 --data {data} --name a --test 1.5", "--test: should be less than 1, got 1.5"),
    ("join --superlink x:1 --data {data} --name a --test 0.5 --valid 0.5", "leave no rows to train on"),
    ("join --superlink x:1 --data {data} --name a --seed -1", "--seed: should be at least 0"),
    ("join --superlink x:1 --data {data} --name a --ca {keys}/ca.crt", "Give this node's private key: --key"),
    ("join --superlink x:1 --data nowhere:rows --dry-run {recipe}", "cannot be imported"),
    ("join --superlink x:1 --data {data} --name a --dry-run {none}", "There is no file"),
    ("join --superlink x:1 --data {data} --name a", "Give --ca"),
    ("join --superlink x:1 --data {data} --name a --insecure", "plain text"),
    ("join --superlink nowhere --data {data} --name a --insecure", "HOST:PORT"),
    ("join --superlink x:1 --data {data} --name a --ca {none} --key {none}", "There is no"),
    ("join --superlink x:1 --data {data} --name a --ca {data} --key {keys}/nodes/oslo", "be read as a certificate"),
    ("join --superlink x:1 --data {data} --name a --ca {keys}/ca.crt --key {none}", "There is no"),
    ("join --superlink x:1 --data {data} --name a --ca {keys}/ca.crt --key {keys}/nodes/oslo.pub", "private key"),
    ("join --superlink 127.0.0.1:1 --data {none} --name a --insecure", "There is no"),
    ("join --superlink 127.0.0.1:1 --data {data} --name a --insecure --port {taken}", "Something listens"),
    ("join --superlink 127.0.0.1:1 --data {data} --insecure --dry-run {recipe}", "Name the site"),
]


@pytest.mark.parametrize(("command", "words"), WRONG, ids=[c for c, _ in WRONG])
def test_wrong_commands_say_what_to_do(command, words, here):
    arguments = command.format(**here).split()
    if arguments[0] == "join":
        arguments += ["--state", str(here["state"])]
    said = fedquilt(*arguments)
    assert said.code == 2, said
    assert words in said.err
    assert "Traceback" not in said.err
