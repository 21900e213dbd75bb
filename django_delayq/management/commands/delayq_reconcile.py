"""Command ``manage.py delayq_reconcile``: synchronise the database and Redis now, not at the next periodic turn."""

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
from ...outbox.duties import Marks, Reconciler, Relay, database_time, unknown
from ...outbox.rows import beside, chunks, free, payload_digest, read, table
from ...settings.conf import conf
from ...status.formatting import printable
from ...worker.loop import Changes
from ..base import DelayQCommand, count_text
from ..rows import add_rows, reconcile

State = OutboxJob.State
#: rows that are checked in one query
PAGE: Final = 500
#: what dispatchers do periodically, and the command does if nothing is chosen
_PERIODIC: Final = ("outbox", "mirror")


class Command(DelayQCommand):
    """Command that synchronises the database and Redis."""

    help = (
        "Synchronises the database with Redis: sends durable jobs that wait or were lost (--outbox), rebuilds the "
        "tables of failed and buried jobs (--mirror), restores durable jobs whose morgue record was lost (--buried), "
        "and sends durable jobs again that Redis refused (--refused). Without a choice it does the first two, as "
        "dispatchers do periodically. "
        "--model compares the rows of a table with their jobs, and restores missing jobs. Exit codes: 0 done, "
        "1 failed, 2 wrong use."
    )
    examples = (
        "delayq_reconcile",
        "delayq_reconcile --buried --queue orders --dry-run",
        "delayq_reconcile --refused --id invoice-17 --yes",
        "delayq_reconcile --model shop.Order --created created_at --task shop.remind --id 'order-{pk}' --dry-run",
    )

    options = """
        --outbox    send waiting rows, record the ends of jobs, and send jobs again that Redis has lost, also new ones
        --mirror    copy all failed jobs and the morgue from Redis again; where MIRROR is off, delete the copies
        --buried    restore durable jobs whose record in the morgue was lost; they run when they are due
        --refused   send durable jobs again that Redis refused
        --queue NAME  only this queue; does not apply to --outbox
        --id ID…    only this job; for --buried and --refused; may be repeated. For --model: the id made of fields, like
                    'order-{pk}'
        --dry-run   change nothing, print what would be changed
        --yes       do not ask for confirmation
        --json      print JSON
    """

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        super().add_arguments(parser)
        add_rows(parser)

    def run(self, **options: Any) -> None:
        """Run the chosen reconciliations in a fixed order."""
        steps = [name for name in ("outbox", "mirror", "buried", "refused") if options[name]]
        of_rows = [f"--{name}" for name in ("filter", "created", "task", "due", "rate") if options[name] is not None]
        model, of_jobs = options["model"], {"buried", "refused"} & {*steps}
        for is_wrong, text in (
            (model and steps, f"--model is compared alone: leave --{', --'.join(steps)} out"),
            (not model and of_rows, f"{', '.join(of_rows)} is about the rows of a table: name its model with --model"),
            (not model and options["id"] and not of_jobs, "--id is for --buried and --refused: give one of them"),
            (
                not model and options["queue"] and steps in ([], ["outbox"]),
                "--queue does not apply to --outbox, which has the rows of all queues: leave --queue out",
            ),
        ):
            if is_wrong:
                raise CommandError(text, returncode=2)
        if model:
            self._reconcile_rows(options)
            return
        steps = steps or list(_PERIODIC)
        broker = connections.broker()
        results: dict[str, dict[str, int]] = {}
        for name in steps:
            results[name] = getattr(self, name)(broker, options)
            if not self.as_json:
                self.stdout.write(f"{name}: {count_text(results[name])}")
        if self.as_json:
            self.print_answer(results)

    def _reconcile_rows(self, options: dict[str, Any]) -> None:
        result = reconcile(self, options)
        counts = {"missing": result["missing"]} if options["dry_run"] else result["outcomes"]
        self.print_answer(result, f"{result['state']}: {count_text(counts)}")

    # --- the outbox

    def outbox(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Run the duties of the outbox until no work is left.

        Returns:
            Counts by word: marks (ends stored), kept (ends that wait, because another process has claimed the row),
            lost (sent again), waiting (dry run only), and the words of
            :class:`~django_delayq.outbox.push.RowOutcome`.
        """
        aliases = conf().outbox.databases
        counts: Counter[str] = Counter()
        if options["dry_run"]:
            counts["marks"] = sum(queue.tick(number).marks for queue in broker.queues() for number in queue.numbers)
            for alias in aliases:
                counts["waiting"] += table(alias).filter(state__in=OutboxJob.WAITING).count()
                counts["lost"] += len(list(self._unknown(alias, broker, State.SENT, options)))
            return dict(counts)
        marks = Marks(aliases, broker, Changes())
        with self.progress("ends", unit="shards") as progress:
            shards = [(queue.name, number) for queue in broker.queues() for number in queue.numbers]
            for number, place in enumerate(shards, 1):
                done, kept = marks.take_down(*place)
                counts.update(marks=done, kept=kept)
                progress.update(number, len(shards))
        for alias in aliases:
            counts["lost"] += self._resend_lost(Reconciler(alias, broker, Changes()), alias)
            counts.update(self._relay(alias, broker))
        return dict(counts)

    def _resend_lost(self, reconciler: Reconciler, alias: str) -> int:
        since, lost = database_time(alias), 0
        total = table(alias).filter(state=State.SENT).count()
        with self.progress("check", unit="rows") as progress:
            while since is not None:
                checked, missing = reconciler.look(since, at_once=True)
                lost += missing
                if not checked:
                    break
                progress.update(progress.done + checked, total)
        return lost

    def _relay(self, alias: str, broker: DjangoBroker) -> Counter[str]:
        relay = Relay(conf(), alias, broker)
        counts: Counter[str] = Counter()
        total = table(alias).filter(state__in=OutboxJob.WAITING).count()
        with self.progress("send", unit="rows") as progress:
            while sent := relay.turn():
                counts.update(sent)
                progress.update(counts.total(), total)
        return counts

    # --- the mirror

    def mirror(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Rebuild the mirrors, or empty them if they are switched off (``MIRROR``).

        Returns:
            Number of rows by place; in a dry run, how many there would be.
        """
        names = [options["queue"]] if options["queue"] else None
        if not options["dry_run"]:
            with self.progress("mirror", unit="rows") as progress:
                return rebuild(names, progress.update)
        if not conf().is_mirrored:
            return {"failed": 0, "morgue": 0}
        queues = [counts for counts in broker.inspector.all_counts() if names is None or counts.queue in names]
        return {"failed": sum(counts.failed for counts in queues), "morgue": sum(counts.morgue for counts in queues)}

    # --- lost morgue records

    def buried(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Restore durable jobs whose morgue records were lost. Return the numbers of lost and restored jobs."""
        aliases = conf().outbox.databases
        lost = [list(self._unknown(alias, broker, State.BURIED, options)) for alias in aliases]
        count = sum(map(len, lost))
        if options["dry_run"] or not count:
            return {"lost": count}
        first = next(row for rows in lost for row in rows)
        self.confirm(
            f"Redis has lost the morgue records of {count} durable jobs, for example of "
            f"{printable(first.queue)}/{printable(first.job_id)}. Schedule these jobs again, to run when they are due?",
            yes=options["yes"],
        )
        restored: Counter[str] = Counter(lost=count)
        for alias, rows in zip(aliases, lost, strict=True):
            for pks in chunks([row.pk for row in rows], PAGE):
                page = table(alias).filter(free(), pk__in=pks, state=State.BURIED)
                restored["unburied"] += page.update(state=State.UNSENT)
            restored.update(self._relay(alias, broker))
        return dict(restored)

    # --- rows that Redis did not accept

    def refused(self, broker: DjangoBroker, options: dict[str, Any]) -> dict[str, int]:
        """Send refused rows again.

        Returns:
            Counts: refused rows (found), those left unchanged because a newer job of their id exists (overtaken), those
            sent again (again), and the outcomes of these.
        """
        aliases = conf().outbox.databases
        refused = [[row for page in self._pages(alias, State.REFUSED, options) for row in page] for alias in aliases]
        overtaken_of = [self._overtaken(alias, rows) for alias, rows in zip(aliases, refused, strict=True)]
        counts: Counter[str] = Counter(found=sum(map(len, refused)), overtaken=sum(map(len, overtaken_of)))
        count = counts["found"] - counts["overtaken"]
        if options["dry_run"] or not count:
            return dict(counts)
        self.confirm(
            f"Send {count} refused durable jobs again? (The outbox in the admin shows why they were refused.)",
            yes=options["yes"],
        )
        for alias, rows, newer in zip(aliases, refused, overtaken_of, strict=True):
            for pks in chunks([row.pk for row in rows if row.pk not in newer], PAGE):
                page = table(alias).filter(pk__in=pks, state=State.REFUSED)
                counts["again"] += page.update(state=State.UNSENT, tries=0, error="", claim=None, claimed_until=None)
            counts.update(self._relay(alias, broker))
        return dict(counts)

    def _overtaken(self, alias: str, rows: list[OutboxJob]) -> set[int]:
        """Return the rows of plain jobs that would replace a newer job of their id."""
        pages = chunks([row.pk for row in rows if not payload_digest(row)], PAGE)
        return {pk for plain in pages for pk in beside(alias, plain, later=True)}

    # --- selection of rows

    def _unknown(self, alias: str, broker: DjangoBroker, state: str, options: dict[str, Any]) -> Iterator[OutboxJob]:
        """Yield rows in a state whose jobs are unknown to Redis."""
        for page in self._pages(alias, state, options):
            yield from unknown(broker, page)

    def _pages(self, alias: str, state: str, options: dict[str, Any]) -> Iterator[list[OutboxJob]]:
        """Yield pages of rows in a state, limited to the given queue and ids."""
        rows = table(alias).filter(state=state)
        if options["queue"]:
            rows = rows.filter(queue=options["queue"])
        if options["id"]:
            rows = rows.filter(job_id__in=options["id"])
        after, total = 0, rows.count()
        with self.progress("read", unit="rows") as progress:
            while page := read(rows.filter(pk__gt=after).order_by("pk")[:PAGE]):
                yield page
                after = page[-1].pk
                progress.update(progress.done + len(page), total)
