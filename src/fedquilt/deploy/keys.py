"""Certificates and keys: a CA of one's own, the server's certificate, and a key pair for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.deploy.flower_command import is_host
from fedquilt.errors import InputError

CA_KEY, CA, SERVER_KEY, SERVER, NODES = "ca.key", "ca.crt", "server.key", "server.pem", "nodes"


@dataclass(frozen=True)
class Keys:
    """The files of a key folder. Keys are readable by their owner only (0600); certificates are public."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate by which nodes and the command know the server."""
        return self.folder / CA

    @property
    def server(self) -> tuple[Path, Path]:
        """The server's certificate and its key."""
        return self.folder / SERVER, self.folder / SERVER_KEY

    def node(self, name: str) -> Path:
        """A node's private key."""
        return self.folder / NODES / name

    @property
    def public(self) -> list[Path]:
        """The public keys of all nodes."""
        return sorted((self.folder / NODES).glob("*.pub"))

    def check_server(self) -> None:
        """Raise unless the server's files are here and still valid."""
        for path in (self.ca, *self.server):
            if not path.is_file():
                raise InputError(f"There is no '{path}'. Make the keys first: fedquilt keys {self.folder} --host NAME.")
        for certificate in (self.ca, self.server[0]):
            check_date(certificate)
        _check_pair(*self.server)
        _check_issuer(self.server[0], self.ca)


def _read_certificate(path: Path) -> Any:
    try:
        return _cryptography().x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read as a certificate. Ask who made the keys for it.") from error


def _check_pair(certificate: Path, key: Path) -> None:
    c = _cryptography()
    try:
        mine = c.serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"'{key}' cannot be read as a private key without a password.") from error
    if mine != _read_certificate(certificate).public_key():
        raise InputError(f"'{key}' is not the key of '{certificate}'. Put the right one there, or create both again.")


def _check_issuer(certificate: Path, ca: Path) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        _read_certificate(certificate).verify_directly_issued_by(_read_certificate(ca))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise InputError(
            f"'{certificate}' was not issued by '{ca}', so no node would trust it. Put the right ca.crt there, or "
            "make a new certificate: fedquilt keys --renew."
        ) from error


def check_loopback(certificate: Path) -> None:
    """Raise unless a certificate is also for 127.0.0.1, where our own SuperLink listens with it."""
    x509 = _cryptography().x509
    try:
        names = _read_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = names.get_values_for_type(x509.IPAddress)
    except x509.ExtensionNotFound:
        known = []
    if ipaddress.ip_address("127.0.0.1") not in known:
        raise InputError(
            f"'{certificate}' must also be valid for the address 127.0.0.1, where the server's own processes meet. "
            "'fedquilt keys' makes such certificates."
        )


def check_node_key(path: Path) -> None:
    """Raise unless this is a node's private key in the form that Flower takes."""
    c = _cryptography()
    try:
        c.serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, c.unsupported) as error:
        raise InputError(
            f"'{path}' is not a node's private key as 'fedquilt keys --node NAME' makes it (the file without .pub)."
        ) from error


def check_date(certificate: Path) -> None:
    """Raise if a certificate is not valid now."""
    found = _read_certificate(certificate)
    now = datetime.datetime.now(datetime.UTC)
    if now > found.not_valid_after_utc:
        raise InputError(
            f"'{certificate}' expired on {found.not_valid_after_utc:%Y-%m-%d}. Make a new one: fedquilt keys --renew."
        )
    if now < found.not_valid_before_utc:
        raise InputError(f"'{certificate}' is valid only from {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.")


def make(folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int = 365, renew: bool = False) -> list[Path]:
    """Make what is missing of a key folder, and return the new files. Nothing is ever overwritten but with ``renew``,
    which makes a new server certificate from the same CA."""
    _check_wanted(hosts, nodes, days)
    keys, made = Keys(folder), list[Path]()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / NODES).mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be a folder for keys: {error.strerror}. Name another.") from error
    if not keys.ca.exists():
        if (folder / CA_KEY).exists():
            raise InputError(
                f"There is '{folder / CA_KEY}' but no '{keys.ca}'. Put the certificate back; nodes would believe no "
                "other. To start over, move the key away."
            )
        made += _make_ca(keys, max(days, 3650))
    if hosts and (renew or not keys.server[0].exists()):
        made += _make_server(keys, hosts, days)
    for name in nodes:
        if not keys.node(name).exists() and not keys.node(f"{name}.pub").exists():  # it may have gone to its site
            made += _make_node(keys.node(name))
    return made


def _check_wanted(hosts: Sequence[str], nodes: Sequence[str], days: int) -> None:
    if not 1 <= days <= 36500:
        raise InputError(f"A certificate is valid for 1 to 36500 days, got {days}.")
    for host in hosts:
        if not is_host(host):
            raise InputError(f"A host is a name like server.example.org or an address like 10.0.0.5, got {host!r}.")
    for name in nodes:
        if not re.fullmatch(r"[\w-]{1,100}", name):
            raise InputError(f"A node's name is made of at most 100 letters, digits, - and _, got {name!r}.")


def _make_ca(keys: Keys, days: int) -> list[Path]:
    c = _cryptography()
    key = c.ec.generate_private_key(c.ec.SECP384R1())
    name = c.x509.Name([c.x509.NameAttribute(c.x509.oid.NameOID.COMMON_NAME, "fedquilt CA")])
    builder = _certificate(c, name, name, key.public_key(), days)
    builder = builder.add_extension(c.x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(c, signs=True), critical=True)
    builder = builder.add_extension(c.x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _secret(keys.folder / CA_KEY, _pem(c, key))
    keys.ca.write_bytes(builder.sign(key, c.hashes.SHA384()).public_bytes(c.serialization.Encoding.PEM))
    return [keys.folder / CA_KEY, keys.ca]


def _make_server(keys: Keys, hosts: Sequence[str], days: int) -> list[Path]:
    c = _cryptography()
    ca_key = keys.folder / CA_KEY
    if not ca_key.is_file():
        raise InputError(f"There is no '{ca_key}' to sign with. Run this where the CA's key is kept.")
    ca = _read_certificate(keys.ca)
    _check_pair(keys.ca, ca_key)
    signer = c.serialization.load_pem_private_key(ca_key.read_bytes(), None)
    key = c.ec.generate_private_key(c.ec.SECP384R1())
    name = c.x509.Name([c.x509.NameAttribute(c.x509.oid.NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _certificate(c, name, ca.subject, key.public_key(), days)
    names = [_host(c, host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    builder = builder.add_extension(c.x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(c.x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(c, signs=False), critical=True)
    builder = builder.add_extension(
        c.x509.ExtendedKeyUsage([c.x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    issuer = c.x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)
    certificate, place = keys.server
    _secret(place, _pem(c, key))
    certificate.write_bytes(builder.sign(signer, c.hashes.SHA384()).public_bytes(c.serialization.Encoding.PEM))
    return [certificate, place]


def _make_node(path: Path) -> list[Path]:
    c = _cryptography()
    key = c.ec.generate_private_key(c.ec.SECP384R1())
    s = c.serialization
    _secret(path, key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH) + b"\n")
    return [path, public]


def _certificate(c: Any, subject: Any, issuer: Any, public: Any, days: int) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        c.x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(c.x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(c: Any, signs: bool) -> Any:
    return c.x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(c: Any, host: str) -> Any:
    try:
        return c.x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return c.x509.DNSName(host)


def _pem(c: Any, key: Any) -> bytes:
    s = c.serialization
    block: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return block


def _secret(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


class _Cryptography:
    """The parts of the package cryptography that are used here."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self.x509: Any = x509
        self.unsupported = UnsupportedAlgorithm
        self.hashes, self.serialization, self.ec = hashes, serialization, ec


def _cryptography() -> Any:
    try:
        return _Cryptography()
    except ImportError as error:
        raise InputError('Keys need the extra "flower". Install it: pip install "fedquilt[flower]".') from error
