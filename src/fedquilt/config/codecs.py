"""Codecs from settings, and whether they can work, seen before a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedquilt.config.options import made
from fedquilt.config.settings import CodecChoice, Config
from fedquilt.core.deployed import first_state
from fedquilt.core.exchange import Codec, Context, Exchange, Method, plain
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site, Source, Table
from fedquilt.core.train import Train
from fedquilt.errors import ConfigError, FedquiltError, InputError
from fedquilt.methods.compressed import Compressed
from fedquilt.pieces.codecs import chain, error_feedback, on, together
from fedquilt.records.record import pack, unpack


def with_codecs(method: Method, config: Config) -> Method:
    """The method with the codecs that the settings ask for."""
    for part, where in ((config.codec, "codec"), (config.download_codec, "download_codec")):
        for exchange in dict.fromkeys(choice.exchange for choice in part):
            codec = codec_of([choice for choice in part if choice.exchange == exchange], where)
            way = {"codec" if where == "codec" else "download": codec}
            method = Compressed(base=method, exchange=exchange, **way)
    return method


def codec_of(choices: Sequence[CodecChoice], where: str) -> Codec:
    """The codec of one section, or of several that are each on a field of their own."""
    if len(choices) == 1:
        return _codec(choices[0], where)
    if any(choice.field is None for choice in choices):
        raise ConfigError([f"{where}: of several codecs, each needs the field it is on"])
    codecs = [_codec(choice, f"{where}.{place}") for place, choice in enumerate(choices)]
    return together(*(codec for codec in codecs if isinstance(codec, on)))


def _codec(choice: CodecChoice, where: str) -> Codec:
    codec: Codec = made("codec", choice, where)
    if choice.chain:
        inner = [made("codec", c, f"{where}.chain.{i}") for i, c in enumerate(choice.chain)]
        codec = chain(codec, *inner)
    if choice.error_feedback:
        codec = error_feedback(codec)
    return codec if choice.field is None else on(choice.field, codec)


def check_codecs(method: Method, source: Source, seed: Seed) -> None:
    """Refuse codecs that cannot work on what this method sends: one small exchange of one client is coded and
    decoded."""
    exchanges = [e for e in method.exchanges() if e.codec != plain or e.download != plain]
    if not exchanges or not len(source.ids):
        return
    client = source.ids[0]
    state, own = method.init_server(seed.fold("server")), first_state(method, seed, client)
    site = _few_rows(source.site(client, 0))
    for exchange in exchanges:
        context = Context(0, client, seed.fold("check", exchange.name))
        with _named(exchange, "downloads"):
            sent = exchange.downloaded(state, client, 0, seed)
        try:
            upload = _short(exchange).work(sent, own, site, context)[1]
        except Exception:  # what the method itself does wrong, the run will say
            continue
        with _named(exchange, "uploads"):
            wire, _ = exchange.codec.encode(upload, sent, None, context.seed)
            exchange.codec.decode(unpack(pack(wire, compact=True)), sent)


class _named:
    """Say whose codec it was."""

    def __init__(self, exchange: Exchange, what: str) -> None:
        self.exchange, self.what = exchange, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FedquiltError):
            codec = self.exchange.codec if self.what == "uploads" else self.exchange.download
            raise InputError(
                f"The codec {codec!r} cannot code the {self.what} of '{self.exchange.name}'. {error}"
            ) from error


def _short(exchange: Exchange) -> Exchange:
    return exchange.training(steps=1) if isinstance(exchange.work, Train) else exchange


def _few_rows(site: Site) -> Site:
    def cut(table: Table | None) -> Table | None:
        return None if table is None else replace(table, index=table.all_rows()[:4])

    train = cut(site.train)
    return replace(site, train=train or site.train, valid=cut(site.valid), unlabelled=cut(site.unlabelled))
