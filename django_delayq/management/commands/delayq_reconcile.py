"""Command ``manage.py delayq_reconcile``: synchronise the database and Redis now instead of in rotation."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...connections import DjangoBroker
from ...mirror import rebuild
from ...models import OutboxJob
from ...outbox.claims import Outbox
from ...outbox.completions import Marks, places
from ...outbox.reconciler import Reconciler, Row, read
from ...outbox.relay import Relay
from ...outbox.rows import free
from ...settings.conf import conf
from ...status.formatting import printable
from ...worker import Changes
from ..base import DelayQCommand

State = OutboxJob.State
#: rows that are checked together
PAGE: Final = 500


class Command(DelayQCommand):
    """Command that synchronises the database and Redis."""

    help = (
        "Brings the database and Redis into line: durable jobs that wait or were lost (--outbox), the tables of failed "
        "and buried jobs (--mirror), durable jobs whose grave was lost (--buried), durable jobs that "
        "Redis did not accept (--refused)."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument(
            "--outbox",
            action="store_true",
            help="send what waits, take down what has ended, send again what Redis has lost, however young it is",
        )
        parser.add_argument("--mirror", action="store_true", help="copy failed jobs and the morgue from Redis anew")
        parser.add_argument(
            "--buried", action="store_true", help="make jobs again of durable ones whose record in the morgue was lost"
        )
        parser.add_argument("--refused", action="store_true", help="send durable jobs again that were refused")
        parser.add_argument("--queue", help="only this queue (not of --outbox)")
        parser.add_argument(
            "--id",
            action="append",
            default=[],
            dest="ids",
            help="only this job (of --buried and --refused); may be repeated",
        )
        parser.add_argument("--dry-run", action="store_true", help="change nothing, say what would be done")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, **options: Any) -> None:
        """Run the chosen reconciliations in a fixed order."""
        chosen = [name for name in ("outbox", "mirror", "buried", "refused") if options[name]]
        if not chosen:
            raise CommandError(
                "what shall be reconciled? Give --outbox, --mirror, --buried or --refused, or several of them"
            )
        if options["ids"] and not (options["buried"] or options["refused"]):
            raise CommandError("--id speaks of --buried and --refused")
        if options["queue"] and chosen == ["outbox"]:
            raise CommandError("--queue speaks of --mirror, --buried and --refused; the outbox is one for all queues")
        broker = connections.broker()
        told: dict[str, dict[str, int]] = {}
        for name in chosen:
            told[name] = getattr(self, name)(broker, options)
            if not options["json"]:
                words = [f"{count} {word}" for word, count in sorted(told[name].items()) if count]
                self.stdout.write(f"{name}: {', '.join(words) or 'nothing to do'}")
        if options["json"]:
            self.print_json(told)

    # --- the outbox

    def outbox(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Run every duty of the outbox until none has work left.

        Returns:
            Counts by word: marks (ends stored), kept (ends that wait, because another process has claimed the row),
            lost (sent again), waiting (dry run only), and the words of
            :class:`~django_delayq.outbox.protocol.RowOutcome`.
        """
        outboxes = [Outbox(alias) for alias in conf().outbox.databases]
        counts: Counter[str] = Counter()
        if options["dry_run"]:
            counts["marks"] = sum(queue.tick(number).marks for queue in broker.queues() for number in queue.numbers)
            for outbox in outboxes:
                counts["waiting"] += outbox.rows.filter(state__in=OutboxJob.WAITING).count()
                counts["lost"] += len(list(self._unknown(outbox, broker, State.SENT, options)))
            return dict(counts)
        marks = Marks(outboxes, broker, Changes())
        with self.progress("ends", unit="shards") as shown:
            shards = list(places(broker.queues()))
            for number, place in enumerate(shards, 1):
                done, kept = marks.take_down(*place)
                counts.update(marks=done, kept=kept)
                shown.update(number, len(shards))
        for outbox in outboxes:
            counts["lost"] += self._look_for_lost(Reconciler(conf(), outbox, broker, Changes()), outbox)
            counts.update(self._relay(outbox, broker))
        return dict(counts)

    def _look_for_lost(self, reconciler: Reconciler, outbox: Outbox) -> int:
        since, lost = outbox.now(), 0
        total = outbox.rows.filter(state=State.SENT).count()
        with self.progress("check", unit="rows") as shown:
            while since is not None:
                asked, missing = reconciler.look(since, at_once=True)
                lost += missing
                if not asked:
                    break
                shown.update(shown.done + asked, total)
        return lost

    def _relay(self, outbox: Outbox, broker: DjangoBroker) -> Counter[str]:
        relay = Relay(conf(), outbox, broker)
        counts: Counter[str] = Counter()
        total = outbox.rows.filter(state__in=OutboxJob.WAITING).count()
        with self.progress("send", unit="rows") as shown:
            while some := relay.turn():
                counts.update(some)
                shown.update(counts.total(), total)
        return counts

    # --- the mirror

    def mirror(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Rebuild the mirrors. Return the number of rows by place; in a dry run, how many there would be."""
        wanted = [options["queue"]] if options["queue"] else None
        if not options["dry_run"]:
            with self.progress("mirror", unit="rows") as shown:
                return rebuild(wanted, shown.update)
        counted = [one for one in broker.inspector.all_counts() if wanted is None or one.queue in wanted]
        return {"failed": sum(one.failed for one in counted), "morgue": sum(one.morgue for one in counted)}

    # --- lost morgue records

    def buried(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Restore durable jobs whose morgue records were lost. Return the numbers of lost and restored jobs."""
        outboxes = [Outbox(alias) for alias in conf().outbox.databases]
        lost = [list(self._unknown(outbox, broker, State.BURIED, options)) for outbox in outboxes]
        count = sum(map(len, lost))
        if options["dry_run"] or not count:
            return {"lost": count}
        first = next(row for rows in lost for row in rows)
        self.confirm(
            f"Redis has lost {count} jobs of its morgue ({printable(first.queue)}/{printable(first.job_id)} is one). "
            "Make them jobs again, which run as soon as they are due?",
            yes=options["yes"],
        )
        kicked: Counter[str] = Counter(lost=count)
        for outbox, rows in zip(outboxes, lost, strict=True):
            for start in range(0, len(rows), PAGE):
                pks = [row.pk for row in rows[start : start + PAGE]]
                mine = outbox.rows.filter(free(), pk__in=pks, state=State.BURIED)
                kicked["unburied"] += mine.update(state=State.UNSENT)
            kicked.update(self._relay(outbox, broker))
        return dict(kicked)

    # --- rows that Redis did not accept

    def refused(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Send refused rows again.

        Returns:
            Counts: refused rows (found), those left unchanged because a newer job of their id exists (overtaken), those
            sent again (again), and the outcomes of these.
        """
        outboxes = [Outbox(alias) for alias in conf().outbox.databases]
        found = [[row for page in self._pages(outbox, State.REFUSED, options) for row in page] for outbox in outboxes]
        left = [self._overtaken(outbox, rows) for outbox, rows in zip(outboxes, found, strict=True)]
        counts: Counter[str] = Counter(found=sum(map(len, found)), overtaken=sum(map(len, left)))
        count = counts["found"] - counts["overtaken"]
        if options["dry_run"] or not count:
            return dict(counts)
        self.confirm(
            f"Send {count} durable jobs again that were refused? (The outbox in the admin tells why.)",
            yes=options["yes"],
        )
        for outbox, rows, overtaken in zip(outboxes, found, left, strict=True):
            pks = [row.pk for row in rows if row.pk not in overtaken]
            for start in range(0, len(pks), PAGE):
                mine = outbox.rows.filter(pk__in=pks[start : start + PAGE], state=State.REFUSED)
                counts["again"] += mine.update(state=State.UNSENT, tries=0, error="", claim=None, claimed_until=None)
            counts.update(self._relay(outbox, broker))
        return dict(counts)

    def _overtaken(self, outbox: Outbox, rows: list[Row]) -> set[int]:
        """Return the rows of plain jobs that would replace a newer job of their id."""
        plain = [row.pk for row in rows if not row.digest]
        found: set[int] = set()
        for start in range(0, len(plain), PAGE):
            found |= outbox.overtaken(plain[start : start + PAGE], (*OutboxJob.WAITING, State.SENT))
        return found

    # --- selection of rows

    def _unknown(self, outbox: Outbox, broker: DjangoBroker, state: str, options: dict[str, Any]) -> Iterator[Row]:
        """Yield rows in a state whose jobs are unknown to Redis."""
        reconciler = Reconciler(conf(), outbox, broker, Changes())
        for page in self._pages(outbox, state, options):
            yield from reconciler.unknown(page)

    def _pages(self, outbox: Outbox, state: str, options: dict[str, Any]) -> Iterator[list[Row]]:
        """Yield pages of rows in a state, limited to the given queue and ids."""
        rows = outbox.rows.filter(state=state)
        if options["queue"]:
            rows = rows.filter(queue=options["queue"])
        if options["ids"]:
            rows = rows.filter(job_id__in=options["ids"])
        after, total = 0, rows.count()
        with self.progress("read", unit="rows") as shown:
            while page := read(rows.filter(pk__gt=after).order_by("pk")[:PAGE]):
                yield page
                after = page[-1].pk
                shown.update(shown.done + len(page), total)
