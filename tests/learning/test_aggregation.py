import numpy as np
import pytest
import torch

from heliomesh.learning import aggregation
from heliomesh.learning.aggregation import aggregate, check_contraction, smallest_eigenvalue
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario

RULES = ("model", "update", "renormalized", "reassigned")
NETWORKS = [
    {"network.devices": 6},
    {"network.topology": "star", "network.devices": 7},
    {"network.topology": "grid", "network.devices": 12, "network.mixing": "lazy-metropolis"},
    {"network.devices": 1},
]


def _topology(changes):
    return build_topology(Scenario.load("ring10").override(changes))


def _slot(topology, runs=1, parameters=23, seed=0, dtype=torch.float64):
    """Random weights around training, and who trained and what arrived; some send without training."""
    rng = np.random.default_rng(seed)
    trained, sent = rng.random((2, runs, topology.num_devices)) < 0.6
    delivered = sent[:, topology.edge_sender] & (rng.random((runs, topology.num_edges)) < 0.7)
    before = torch.from_numpy(rng.normal(size=(runs, topology.num_devices, parameters))).to(dtype)
    step = torch.from_numpy(rng.normal(size=before.shape)).to(dtype)
    return before, before + step * torch.from_numpy(trained)[..., None], delivered, trained


def _lossless(topology):
    return np.ones(topology.num_edges, dtype=bool), np.ones(topology.num_devices, dtype=bool)


def _naive(rule, topology, before, after, delivered, trained):
    """The equations of the module's docstring, term by term; one run."""
    a, out = topology.mixing, []
    arrived = np.eye(topology.num_devices)  # ζ_ii = 1
    arrived[topology.edge_receiver, topology.edge_sender] = delivered
    for i in range(topology.num_devices):
        senders = range(topology.num_devices)
        if rule == "update":
            row = before[i].clone()
            for j in senders:
                row = row + float(trained[j]) * arrived[i, j] * a[i, j] * (after[j] - before[j])
        elif rule == "model":
            row = after[i].clone()
            for j in senders:
                row = row + arrived[i, j] * a[i, j] * (after[j] - after[i])
        elif rule == "reassigned":
            total = sum(arrived[i, j] * a[i, j] for j in senders if j != i)
            row = a[i, i] * after[i] if total else after[i].clone()
            for j in senders:
                if j != i and arrived[i, j]:
                    row = row + (1 - a[i, i]) * a[i, j] / total * after[j]
        else:
            total = sum(arrived[i, j] * a[i, j] for j in senders)
            row = sum(arrived[i, j] * a[i, j] * after[j] for j in senders) / total
        out.append(row)
    return torch.stack(out)


@pytest.mark.parametrize("changes", NETWORKS)
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_equals_its_equation_written_in_loops(rule, changes):
    topology = _topology(changes)
    before, after, delivered, trained = _slot(topology, runs=3)
    out = torch.empty_like(after)
    aggregate(rule, topology, before, after, delivered, trained, out)
    for run in range(3):
        expected = _naive(rule, topology, before[run], after[run], delivered[run], trained[run])
        torch.testing.assert_close(out[run], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "expected"), [("model", 8.0), ("renormalized", 7.5), ("reassigned", 7.0), ("update", 8.0)]
)
def test_who_gets_the_weight_of_a_lost_packet(rule, expected):
    """A ring with a_ij = 1/3: device 1 has 9 after training from 9, of 6 and 3 only the 6 arrives."""
    topology = _topology({"network.devices": 3})
    after = torch.tensor([[6.0], [9.0], [3.0]], dtype=torch.float64)
    before = torch.tensor([[9.0], [9.0], [3.0]], dtype=torch.float64)
    out, delivered = torch.empty_like(after), (topology.edge_receiver == 1) & (topology.edge_sender == 0)
    aggregate(rule, topology, before, after, delivered, np.array([True, True, True]), out)
    assert float(out[1]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "both_arrive", "one_arrives"),
    [
        ("update", [2.0, 10.0], [2.0, 9.0]),
        ("model", [6.0, 6.0], [6.0, 9.0]),
        ("renormalized", [6.0, 6.0], [6.0, 9.0]),
    ],
)
def test_a_packet_without_training_brings_current_weights_and_no_update(rule, both_arrive, one_arrives):
    """Two devices with weights 1/2: device 0 trains from 1 to 3, device 1 stays at 9, and both send."""
    topology = _topology({"network.topology": "complete", "network.devices": 2})
    before, after = torch.tensor([[1.0], [9.0]]), torch.tensor([[3.0], [9.0]])
    trained, to_device_0 = np.array([True, False]), topology.edge_receiver == 0
    for delivered, expected in ((np.ones(2, bool), both_arrive), (to_device_0, one_arrives)):
        out = torch.empty_like(after)
        aggregate(rule, topology, before, after, delivered, trained, out)
        assert out.flatten().tolist() == expected


@pytest.mark.parametrize("target", ["before", "after"])
@pytest.mark.parametrize("rule", RULES)
def test_in_place_and_in_chunks_equals_a_third_tensor_bit_for_bit(rule, target, monkeypatch):
    topology = _topology(NETWORKS[2])
    before, after, delivered, trained = _slot(topology, runs=2, dtype=torch.float32)
    expected = torch.empty_like(after)
    aggregate(rule, topology, before, after, delivered, trained, expected)
    monkeypatch.setattr(aggregation, "_CPU_WIDTH", 5)
    out = {"before": before, "after": after}[target]
    aggregate(rule, topology, before, after, delivered, trained, out)
    assert torch.equal(out, expected)


def test_a_workspace_smaller_than_one_column_still_works(monkeypatch):
    topology = _topology(NETWORKS[0])
    _, after, delivered, trained = _slot(topology)
    expected = torch.empty_like(after)
    aggregate("model", topology, None, after, delivered, trained, expected)
    monkeypatch.setattr("heliomesh.learning.aggregation.WORKSPACE_BYTES", 0)
    aggregate("model", topology, None, after, delivered, trained, after)
    assert torch.equal(after, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_does_not_depend_on_the_stack_it_is_in(rule):
    topology = _topology(NETWORKS[0])
    before, after, delivered, trained = _slot(topology, runs=4, dtype=torch.float32)
    together = torch.empty_like(after)
    aggregate(rule, topology, before, after, delivered, trained, together)
    for run in range(4):
        alone = torch.empty_like(after[run])
        aggregate(rule, topology, before[run], after[run], delivered[run], trained[run], alone)
        assert torch.equal(together[run], alone)


@pytest.mark.parametrize("rule", RULES)
def test_a_device_that_neither_trained_nor_received_is_unchanged_bit_for_bit(rule):
    topology = _topology(NETWORKS[0])
    before, after, delivered, trained = _slot(topology, dtype=torch.float32)
    trained[0, 2] = False
    delivered[0, (topology.edge_receiver == 2) | (topology.edge_sender == 2)] = False
    before[0, 2, :2] = torch.tensor([-0.0, float("nan")])  # arithmetic would change these
    after[0, 2] = before[0, 2]
    kept = before[0, 2].clone()
    for out in (torch.empty_like(after), before):
        aggregate(rule, topology, before, after, delivered, trained, out)
        assert torch.equal(out[0, 2].view(torch.int32), kept.view(torch.int32))


@pytest.mark.parametrize("rule", ["model", "renormalized", "reassigned"])
def test_equal_models_are_a_fixed_point_whatever_is_lost(rule):
    topology = _topology(NETWORKS[2])
    _, after, delivered, trained = _slot(topology, dtype=torch.float32)
    after = after[0, :1].expand(topology.num_devices, -1).contiguous()
    out = torch.empty_like(after)
    aggregate(rule, topology, None, after, delivered, trained, out)
    assert torch.equal(out, after)


@pytest.mark.parametrize("rule", RULES)
def test_the_mean_is_preserved_when_nothing_is_lost(rule):
    topology = _topology(NETWORKS[1])
    before, after = (
        torch.randn(7, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    out = torch.empty_like(after)
    aggregate(rule, topology, before, after, *_lossless(topology), out)
    torch.testing.assert_close(out.mean(0), after.mean(0))


def _descend(rule, mixing, rate_of_slot, slots):
    """Every device descends its own ½(w − target)² on an even ring; returns weights and targets."""
    topology = _topology({"network.devices": 6, "network.mixing": mixing})
    target = torch.tensor([[3.0], [-1.0], [2.0], [-2.0], [5.0], [-7.0]], dtype=torch.float64)
    weights = torch.zeros_like(target)
    for slot in range(slots):
        after = weights - rate_of_slot(slot) * (weights - target)
        aggregate(rule, topology, weights, after, *_lossless(topology), weights)
    return weights, target


def test_model_gossip_reaches_consensus_at_the_optimum_of_the_sum():
    weights, target = _descend("model", "metropolis", lambda slot: 0.1 / (1 + 0.02 * slot), slots=4000)
    assert float(weights.std()) < 0.02
    assert torch.allclose(weights, target.mean().expand_as(weights), atol=0.05)


def test_the_papers_rule_diverges_with_a_negative_eigenvalue_and_not_without():
    diverged, _ = _descend("update", "metropolis", lambda _: 0.1, slots=600)
    assert float(diverged.abs().max()) > 1e6
    settled, target = _descend("update", "lazy-metropolis", lambda _: 0.1, slots=600)
    assert torch.allclose(settled, target, atol=1e-3)  # stable, but everyone ends at its own optimum


def test_the_smallest_eigenvalue_is_that_of_the_matrix(monkeypatch):
    topology = _topology({"network.topology": "grid", "network.devices": 36})
    exact = np.linalg.eigvalsh(topology.mixing)[0]
    assert smallest_eigenvalue(topology) == pytest.approx(exact, abs=1e-12)
    monkeypatch.setattr(aggregation, "_DENSE_EIGENVALUES", 10)
    assert smallest_eigenvalue(topology) == pytest.approx(exact, abs=1e-3)


def test_the_papers_rule_is_refused_where_it_diverges():
    plain, lazy = (_topology({"network.mixing": mixing}) for mixing in ("metropolis", "lazy-metropolis"))
    with pytest.raises(ScenarioError, match=r"lazy-metropolis.*allow_divergence.*eigenvalue -0\.3333") as caught:
        check_contraction("update", plain, allow_divergence=False)
    assert caught.value.field == "learning.aggregation"
    check_contraction("update", plain, allow_divergence=True)
    check_contraction("update", lazy, allow_divergence=False)
    check_contraction("model", plain, allow_divergence=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_the_fused_kernel_equals_the_rows(rule, in_place):
    topology = _topology(NETWORKS[2])
    before, after, delivered, trained = _slot(topology, runs=2, parameters=3001, dtype=torch.float32)
    expected = torch.empty_like(after)
    aggregate(rule, topology, before, after, delivered, trained, expected)
    on_device = [weights.cuda() for weights in (before, after)]
    out = on_device[0] if in_place else torch.empty_like(on_device[1])
    aggregate(rule, topology, *on_device, delivered, trained, out)
    torch.testing.assert_close(out.cpu(), expected)


# rules from outside


def as_model(arrived):
    """The built-in rule `model`, written for one device."""
    return arrived.own + (arrived.weight[:, None] * (arrived.received - arrived.own)).sum(0)


def too_short(arrived):
    return arrived.own[1:]


def test_a_rule_from_outside_sees_what_one_device_sees():
    topology = build_topology(Scenario.load("tiny"))
    generator = torch.Generator().manual_seed(0)
    after = torch.randn(2, topology.num_devices, 6, generator=generator, dtype=torch.float64)
    delivered = torch.rand(2, topology.num_edges, generator=generator).numpy() < 0.4
    trained = np.ones((2, topology.num_devices), bool)
    expected, actual, in_place = torch.empty_like(after), torch.empty_like(after), after.clone()
    aggregate("model", topology, None, after, delivered, trained, expected)
    aggregate(f"{__name__}:as_model", topology, None, after, delivered, trained, actual)
    aggregate(f"{__name__}:as_model", topology, None, in_place, delivered, trained, in_place)
    torch.testing.assert_close(actual, expected)
    assert torch.equal(actual, in_place)
    silent = ~np.isin(np.arange(topology.num_devices), topology.edge_receiver[delivered[0]])
    assert torch.equal(actual[0][silent], after[0][silent])


def test_the_median_ignores_one_wild_neighbour():
    topology = build_topology(Scenario.load("tiny").override({"network.topology": "complete", "network.devices": 5}))
    models = torch.arange(5.0).view(5, 1)
    models[4] = 1e6
    delivered = np.ones(topology.num_edges, bool)
    aggregate("median", topology, None, models, delivered, np.ones(5, bool), models)
    assert models.flatten().tolist() == [2.0] * 5


def test_what_a_rule_returns_is_checked():
    topology = build_topology(Scenario.load("tiny"))
    models, delivered = torch.zeros(5, 3), np.ones(topology.num_edges, bool)
    with pytest.raises(
        ScenarioError, match=r"learning\.aggregation: expected .*too_short.* shape \(3,\), actual \(2,\)"
    ):
        aggregate(f"{__name__}:too_short", topology, None, models, delivered, np.ones(5, bool), models)
