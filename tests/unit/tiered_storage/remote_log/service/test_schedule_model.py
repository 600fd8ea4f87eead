"""A service's schedule under random assignments, leader changes, failures and ends: no thread, no real time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.service.schedule import BROKEN_SECONDS, Outcome, Role, TaskKind
from unit.tiered_storage.remote_log.service.simulated_time import PACE, PARTITIONS, Time, a_schedule

Running = tuple[TopicIdPartition, TaskKind]
LONGEST_WAIT = BROKEN_SECONDS * (1 + PACE.jitter)


class ScheduleMachine(RuleBasedStateMachine):
    """The pools take tasks and end them in any order; the model knows the roles and what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.schedule = a_schedule(self.time)
        self.roles: dict[TopicIdPartition, Role] = {}
        self.running: list[Running] = []
        self.followed: set[TopicIdPartition] = set()
        """The pool may have these open."""

    @rule(partition=st.sampled_from(PARTITIONS), role=st.sampled_from(Role))
    def assign(self, partition: TopicIdPartition, role: Role) -> None:
        self.schedule.assign(partition, role)
        self.roles[partition] = role
        if role is Role.FOLLOWER:
            self.followed.add(partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def remove(self, partition: TopicIdPartition) -> None:
        self.schedule.remove(partition)
        self.roles.pop(partition, None)

    @rule(kind=st.sampled_from(TaskKind), most=st.integers(1, 3), sharing=st.integers(1, 3))
    def take(self, kind: TaskKind, most: int, sharing: int) -> None:
        busy = {partition for partition, _ in self.running}
        taken = self.schedule.take(kind, most, sharing)
        assert len(taken) <= most
        assert len(set(taken)) == len(taken)
        assert not busy & set(taken)
        self.let_go_of(kind, taken)
        self.running += [(each, kind) for each in taken]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        at = data.draw(st.integers(0, len(self.running) - 1))
        partition, kind = self.running.pop(at)
        self.schedule.ended(partition, kind, outcome)

    def let_go_of(self, kind: TaskKind, taken: list[TopicIdPartition]) -> None:
        """Note which of `taken`, which have no such role any more, the pool lets go now."""
        let_go = {each for each in taken if self.roles.get(each) is not kind.role}
        assert let_go <= (self.followed if kind is TaskKind.FOLLOW else set())
        self.followed -= let_go

    @rule(seconds=st.sampled_from([0.1, 1, 29, 31, 1000]))
    def pass_time(self, seconds: float) -> None:
        self.time.move_by(seconds)

    @rule()
    def each_due_task_runs_in_the_end(self) -> None:
        while self.running:
            partition, kind = self.running.pop()
            self.schedule.ended(partition, kind, Outcome.DONE)
        self.time.move_by(LONGEST_WAIT)
        wanted = {(each, kind) for each, role in self.roles.items() for kind in TaskKind if kind.role is role}
        wanted |= {(each, TaskKind.FOLLOW) for each in self.followed}
        ran = set[Running]()
        # One round for each kind: the tasks of a partition take turns.
        for _ in TaskKind:
            for kind in TaskKind:
                taken = self.schedule.take(kind, len(PARTITIONS))
                self.let_go_of(kind, taken)
                for partition in taken:
                    ran.add((partition, kind))
                    self.schedule.ended(partition, kind, Outcome.DONE)
        assert ran == wanted
        assert self.followed == set(self.schedule.partitions(Role.FOLLOWER))

    @invariant()
    def the_roles_are_those_that_were_assigned_last(self) -> None:
        for role in Role:
            assert self.schedule.partitions(role) == sorted(each for each, one in self.roles.items() if one is role)
        for partition in PARTITIONS:
            for kind in TaskKind:
                assert self.schedule.is_wanted(partition, kind) == (self.roles.get(partition) is kind.role)
        assert self.schedule.wait_until_idle(0) == (not self.running)


ScheduleMachine.TestCase.settings = settings(stateful_step_count=60)
TestScheduleModel = ScheduleMachine.TestCase
