"""The paper's algorithms in plain loops against the library, on random runs."""

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import reference
from equipoise.simplex import Entropic, Euclidean, project

UPDATES = {"PGD": (reference.projected_gradient, Euclidean()), "EG": (reference.exponentiated_gradient, Entropic())}


def quadratics(draw, m, d):
    """m random bowls in d dimensions: f(θ) and its gradients."""
    centres, scales = draw.normal(size=(m, d)), draw.uniform(0.2, 2.0, size=m)

    def objectives(theta):
        away = theta - centres
        return scales * (away**2).sum(1), 2 * scales[:, None] * away

    return objectives


def library(objectives, theta, w, T, eta_theta, eta_lambda, mirror, conversion):
    """The same run by the library's weighting and conversion, in float64."""
    weighting, point, preference = eq.OMD(eta_lambda, mirror), torch.from_numpy(theta), torch.from_numpy(w)
    f, _ = objectives(theta)
    state = weighting.init(torch.from_numpy(f))
    kept = conversion.init({"x": point}, torch.from_numpy(f))
    for _ in range(T):
        f, gradients = (torch.from_numpy(np.asarray(of)) for of in objectives(point.numpy()))
        kept = conversion.update({"x": point}, f, kept)
        c, state = weighting.update(f, state, preference)
        point = point - eta_theta * c @ gradients
    return conversion.output(kept)["x"].numpy()


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("m", [2, 3, 5])
def test_both_algorithms_are_the_librarys(name, m):
    update, mirror = UPDATES[name]
    draw = np.random.default_rng(m)
    for _ in range(20):
        objectives, theta, w = quadratics(draw, m, 3), draw.normal(size=3), draw.dirichlet(np.ones(m))
        settings = int(draw.integers(2, 60)), float(draw.uniform(0.01, 0.3)), float(draw.uniform(0.01, 2.0))
        average, _, _ = reference.omd_tch(objectives, theta, w, *settings, update)
        adaptive = reference.adaomd_tch(objectives, theta, w, *settings, update)
        for answer, conversion in ((average, eq.Average()), (adaptive, eq.Adaptive(ties="keep"))):
            found = library(objectives, theta, w, *settings, mirror, conversion)
            assert found == pytest.approx(answer, rel=1e-9, abs=1e-12)


def test_the_weights_are_those_of_adaptive_on_a_thousand_random_runs():
    """Losses on a small grid, so that ties and all three cases occur; T = 30 iterates, all runs as one batch."""
    runs, T, m = 1000, 30, 3
    losses = np.random.default_rng(0).integers(0, 6, size=(runs, T, m)).astype(float)
    points = torch.arange(T, dtype=torch.float64).expand(runs, T)
    conversion = eq.Adaptive(ties="keep")
    state = conversion.init({"x": points[:, :1]}, torch.from_numpy(losses[:, 0]))
    for t in range(T):
        state = conversion.update({"x": points[:, t : t + 1]}, torch.from_numpy(losses[:, t]), state)
    found = conversion.output(state)["x"][:, 0].numpy()
    cases = set()
    for run in range(runs):
        gamma = reference.adaptive_weights(losses[run])
        assert sum(gamma.values()) == pytest.approx(T)
        assert found[run] == pytest.approx(sum(weight * t for t, weight in gamma.items()) / T, rel=1e-9)
        cases |= {"new" if weight == 1 else "split" if weight % 1 else "inherited" for weight in gamma.values()}
    assert cases == {"new", "split", "inherited"}


def test_pgd_is_the_projection_of_the_library():
    draw = np.random.default_rng(1)
    for m in (2, 4, 50):
        lam, gains = draw.dirichlet(np.ones(m)), draw.normal(size=m)
        mine = reference.projected_gradient(lam, gains, 0.7)
        assert mine == pytest.approx(project(torch.from_numpy(lam + 0.7 * gains)).numpy(), abs=1e-12)
