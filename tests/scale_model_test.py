"""The simulator of docs/scale.md agrees with closed formulas where there are some."""

import dataclasses

import pytest

from benchmarks.scale import fit as scale_fit
from benchmarks.scale import grid as scale_grid
from benchmarks.scale import model as scale_model
from benchmarks.scale import plan as scale_plan
from benchmarks.scale.model import Costs, Setting

FREE = Costs(
    vector_step=1e-6,
    write_chunk=1e-6,
    serve_chunk=1e-6,
    read_chunk=1e-6,
    read_step=0.0,
    message=0.0,
    wake_up=0.0,
    hand_over=0.0,
    timer=1e-4,
)


def test_saturated_server_serves_one_chunk_per_service_time():
    costs = dataclasses.replace(FREE, serve_chunk=2e-3)
    found = scale_model.simulate(Setting(collectors=4, shards=1), costs)
    assert found['chunks'] == pytest.approx(500, rel=0.02)
    assert found['cpu']['server'] == pytest.approx(1.0, rel=0.02)
    assert found['steps'] == pytest.approx(500 * 16 * costs.steps_per_row, rel=0.02)


def test_saturated_core_is_shared_by_collectors_and_reader():
    costs = dataclasses.replace(FREE, vector_step=1e-4, write_chunk=4e-4, read_chunk=8e-4, read_step=1e-5)
    found = scale_model.simulate(Setting(collectors=8, shards=2), costs)
    per_chunk = 1e-4 + 4e-4 + 8e-4 + 16 * 1e-5  # 16 steps of 16 environments are 16 chunks
    assert found['chunks'] == pytest.approx(1 / per_chunk, rel=0.02)
    assert found['cpu']['collector'] + found['cpu']['reader'] == pytest.approx(1.0, rel=0.02)


def test_delay_limits_a_reader_to_two_round_trips_for_each_stream():
    found = scale_model.simulate(Setting(collectors=8, shards=1, hold_secs=5e-3), FREE)
    assert found['chunks'] == pytest.approx(scale_model.MAX_STREAMS / (4 * 5e-3), rel=0.06)


def test_paced_collectors_keep_their_pace():
    found = scale_model.simulate(Setting(collectors=4, shards=2, pace=4_000.0), FREE)
    assert found['steps'] == pytest.approx(16_000 * FREE.steps_per_row, rel=0.03)


def test_limiter_keeps_the_samples_per_insert():
    setting = Setting(collectors=2, shards=1, train_rate=50.0)
    found = scale_model.simulate(setting, FREE, settle_secs=1.0, secs=5.0)
    wanted = setting.train_rate * setting.batch_size / setting.samples_per_insert
    assert found['steps'] == pytest.approx(wanted, rel=0.05)


def test_halves_of_the_grid_are_as_large_and_were_measured_in_all_rounds():
    points = scale_grid.points()
    grid = [point for point in points if point.load in scale_grid.GRID_LOADS]
    assert len(grid) == 4 * 3 * 3 * 2
    assert sum(point.is_training for point in grid) == len(grid) / 2
    measured = scale_fit.load()
    assert set(measured) == set(points)
    assert all(len(value.rounds) == 2 for value in measured.values())


def test_plan_below_saturation_moves_all_steps():
    plan = scale_plan.Plan(2e4, shards=2, readers=2, collectors=20)
    costs, wire = Costs(), (400.0, 20.0)
    shares = scale_plan.shares(plan, costs, wire)
    assert max(shares.values()) < scale_plan.MOST
    found = scale_plan.simulate(plan, costs, wire)
    assert found['inserted'] == pytest.approx(plan.steps, rel=0.05)
    assert found['read'] == pytest.approx(plan.steps, rel=0.05)


def test_plan_has_what_each_part_needs():
    plan = scale_plan.smallest(scale_plan.Plan(1e6, shards=1, readers=1), Costs(), (400.0, 20.0))
    shares = scale_plan.shares(plan, Costs(), (400.0, 20.0))
    assert max(shares.values()) <= scale_plan.MOST
    fewer = dataclasses.replace(plan, shards=plan.shards - 1)
    assert scale_plan.shares(fewer, Costs(), (400.0, 20.0))["a replay server's core"] > scale_plan.MOST


def test_relays_divide_the_time_of_a_publication():
    assert scale_plan.weights(50, 1_000, 0, 10.0) == pytest.approx(40.0)  # 50 GB at 10 Gb/s
    assert scale_plan.weights(50, 1_000, 32, 10.0) == pytest.approx(0.04 * 64)
