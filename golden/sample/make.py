"""Writes steps.json, curves.json and draws.json: the sampling chain in f64, from its specification alone.

Nothing here comes from plumb. Every step is the plainest form of its definition: full softmax, full sort, no skipping.
Curves go through SciPy (PchipInterpolator's interior slopes are Fritsch-Carlson's weighted harmonic mean; the two end
slopes are set as the specification says). The noise is Philox 4x32-10, checked against Random123's known answers.

Made with Python 3.11, NumPy 2.4.6, SciPy 1.17.1:  python make.py
"""

import json
import math
import pathlib

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator
from scipy.special import logsumexp
from scipy.stats import chi2

HERE = pathlib.Path(__file__).parent
OFF = dict(
    logit_bias={}, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, penalty_last_n=None,
    dry_multiplier=0.0, dry_base=1.75, dry_allowed_length=2, dry_last_n=None, dry_sequence_breakers=[],
    top_n_sigma=0.0, top_k=0, typical_p=1.0, top_p=1.0, min_p=0.0, xtc_probability=0.0, xtc_threshold=0.1,
    temperature=1.0, curve=None, hlg=None, seed=0,
)  # fmt: skip
MASK32 = 0xFFFFFFFF


# Noise.
def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox([MASK32] * 4, [MASK32] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def words(what, seed, choice, position):
    high = (position >> 32 & 0xFFFF) | (choice >> 32 & 0xFFFF) << 16
    return philox([what, position & MASK32, choice & MASK32, high], [seed & MASK32, seed >> 32])


def uniform(word):
    return (word + 0.5) / 2.0**32


def coin(seed, choice, position):
    return uniform(words(2**30, seed, choice, position)[0])


def gumbels(n, seed, choice, position):
    """-ln of exponential arrivals: in each block of 64 tokens the earliest, its token, and by how much others are later."""
    noise = []
    for block in range((n + 63) // 64):
        earliest = -math.log(uniform(words(2**31 + block // 4, seed, choice, position)[block % 4])) / 64
        first = words(2**31 + 2**30 + block, seed, choice, position)[0] % 64
        own = [w for g in range(16) for w in words(16 * block + g, seed, choice, position)]
        noise += [-math.log(earliest - (0 if i == first else math.log(uniform(w)))) for i, w in enumerate(own)]
    return np.array(noise[:n])


# Curves.
def curve_v2(points):
    xy = sorted((math.log(max(p["x_pct"], 1e-9) / 100), math.log(max(p["y_pct"], 1e-9) / 100)) for p in points)
    x, y = np.array([a for a, _ in xy]), np.array([b for _, b in xy])
    secants = np.diff(y) / np.diff(x)
    slopes = PchipInterpolator(x, y).derivative()(x)
    slopes[0], slopes[-1] = secants[0], secants[-1]
    inside = CubicHermiteSpline(x, y, slopes)

    def f(u):
        u = np.asarray(u, dtype=float)
        below = y[0] + max(slopes[0], 1.0) * (u - x[0])
        above = y[-1] + slopes[-1] * (u - x[-1])
        return np.where(u < x[0], below, np.where(u > x[-1], above, inside(np.clip(u, x[0], x[-1]))))

    return f


def curve_v1(c, temperature):
    c = dict(width=4.0, shoulder=4.0, toe=6.0, pivot_offset=6.0) | c
    w = math.inf if c["width"] == "inf" else c["width"]
    m, bs, bt = 1 / temperature, c["shoulder"], c["toe"]

    def f(u):
        z = u - (np.max(u) - c["pivot_offset"])
        out = []
        for v in z:
            if v > w and bs > 0:
                out.append(m * w + m * bs * math.log(1 + (v - w) / bs))
            elif v < -w and bt > 0:
                out.append(-m * w - m * bt * math.log(1 + (-v - w) / bt))
            else:
                out.append(m * v)
        return np.array(out)

    return f


# The chain: a dict token -> logit, narrowed step by step.
def softmax(alive):
    tokens = sorted(alive, key=lambda t: (-alive[t], t))
    logits = np.array([alive[t] for t in tokens])
    return tokens, np.exp(logits - logsumexp(logits))


def tail(history, n):
    return history if n is None else history[len(history) - min(n, len(history)) :]


def penalties(alive, history, c):
    window = tail(history, c["penalty_last_n"])
    for t in set(window) & set(alive):
        alive[t] = alive[t] / c["repetition_penalty"] if alive[t] > 0 else alive[t] * c["repetition_penalty"]
        alive[t] -= window.count(t) * c["frequency_penalty"] + c["presence_penalty"]


def dry(alive, history, c):
    window, breakers = tail(history, c["dry_last_n"]), set(c["dry_sequence_breakers"])
    longest = {}
    for end in range(len(window) - 1):  # an earlier place where the end of the history may stand
        n = 0
        while n <= end and window[end - n] == window[-1 - n] and window[-1 - n] not in breakers:
            n += 1
        follower = window[end + 1]
        if n >= c["dry_allowed_length"] and follower not in breakers:
            longest[follower] = max(longest.get(follower, 0), n)
    for t, n in longest.items():
        if t in alive:
            alive[t] -= c["dry_multiplier"] * c["dry_base"] ** (n - c["dry_allowed_length"])


def keep(alive, tokens):
    return {t: alive[t] for t in tokens}


def distribution(logits, history, config, choice=0, position=0, mask=None):
    """Token -> log-weight (before normalisation) of what the chain leaves, in f64."""
    c = OFF | config
    alive = {t: float(l) for t, l in enumerate(logits) if l > -math.inf}
    for t, b in c["logit_bias"].items():
        if int(t) in alive:
            alive[int(t)] += b
    penalties(alive, history, c)
    if c["dry_multiplier"] and c["dry_last_n"] != 0:
        dry(alive, history, c)
    if mask is not None:
        alive = {t: l for t, l in alive.items() if t in mask}
    curved = c["curve"] or c["hlg"] is not None
    if (c["temperature"] == 0 and not c["curve"]) or (not curved and (c["top_p"] == 0 or c["top_k"] == 1)):
        return {softmax(alive)[0][0]: 0.0}
    if c["top_n_sigma"]:
        values = np.array(list(alive.values()))
        least = values.max() - c["top_n_sigma"] * values.std()
        alive = {t: l for t, l in alive.items() if l >= least}
    if curved:
        tokens, p = softmax(alive)
        f = curve_v2(c["curve"]["points"]) if c["curve"] else curve_v1(c["hlg"], c["temperature"])
        return dict(zip(tokens, f(np.log(p))))
    if c["top_k"]:
        alive = keep(alive, softmax(alive)[0][: c["top_k"]])
    if c["typical_p"] < 1:
        tokens, p = softmax(alive)
        distance = np.abs(-np.log(p) + np.sum(p * np.log(p)))
        kept, mass = [], 0.0
        for i in np.argsort(distance, kind="stable"):
            kept.append(tokens[i])
            mass += p[i]
            if mass > c["typical_p"]:
                break
        alive = keep(alive, kept)
    if c["top_p"] < 1:
        tokens, p = softmax(alive)
        n = int(np.searchsorted(np.cumsum(p), c["top_p"])) + 1
        alive = keep(alive, tokens[:n])
    if c["min_p"] > 0:
        tokens, p = softmax(alive)
        alive = keep(alive, [t for t, q in zip(tokens, p) if q >= c["min_p"] * p[0] * (1 - 1e-15)])
    if c["xtc_probability"] > 0 and coin(c["seed"], choice, position) < c["xtc_probability"]:
        tokens, p = softmax(alive)
        likely = int(np.sum(p >= c["xtc_threshold"]))
        if likely > 1:
            alive = keep(alive, tokens[likely - 1 :])
    return {t: l / c["temperature"] for t, l in alive.items()}


def draw(logits, history, config, choice, position, mask=None):
    left = distribution(logits, history, config, choice, position, mask)
    noise = gumbels(len(logits), (OFF | config)["seed"], choice, position)
    return max(left, key=lambda t: (left[t] + noise[t], -t))


# Inputs.
def synthetic(n, salt, scale):
    """Bell-shaped logits that f32 holds exactly: sums of four 16-bit fields of an LCG, in steps of 1/4096 · scale."""
    state, out = salt, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(((state >> 48) + (state >> 32 & 0xFFFF) + (state >> 16 & 0xFFFF) + (state & 0xFFFF) - 131072) * scale / 4096)
    return np.array(out, dtype=np.float32)


def pct(*pairs):
    return {"space": "logprob", "points": [{"x_pct": x, "y_pct": y} for x, y in pairs], "monotonic": True}


CURVES = {
    "identity": pct((0, 0), (100, 100)),
    "two points": pct((1, 3), (50, 40)),
    "soft top": pct((100, 30), (10, 10), (0.01, 0.01)),
    "plateau": pct((0.001, 0.0001), (0.1, 1), (5, 1), (60, 80), (100, 90)),
    "cut below": pct((0.5, 1e-9), (1, 1), (20, 30), (90, 60)),
    "uneven": pct((1e-7, 1e-6), (2e-7, 2e-6), (3, 4), (3.5, 9), (99, 99.5)),
    "flat first": pct((0.1, 2), (1, 2), (30, 50)),
}
BREAK = [7, 11]

CONFIGS = {
    "plain": {},
    "temperature 0.7": dict(temperature=0.7),
    "temperature 2.5": dict(temperature=2.5),
    "temperature 0": dict(temperature=0.0),
    "top_k 1": dict(top_k=1),
    "top_p 0": dict(top_p=0.0),
    "bias": dict(logit_bias={"0": -3.5, "5": 4.0, "17": -100.0}),
    "repetition": dict(repetition_penalty=1.3),
    "repetition below 1": dict(repetition_penalty=0.8, penalty_last_n=9),
    "presence and frequency": dict(presence_penalty=0.6, frequency_penalty=0.4, penalty_last_n=16),
    "no window": dict(presence_penalty=0.6, penalty_last_n=0),
    "dry": dict(dry_multiplier=0.8),
    "dry with breakers": dict(dry_multiplier=0.8, dry_sequence_breakers=BREAK),
    "dry of one": dict(dry_multiplier=0.5, dry_allowed_length=1, dry_base=1.2, dry_last_n=20),
    "dry of none": dict(dry_multiplier=0.3, dry_allowed_length=0, dry_base=1.5),
    "top-n-sigma 1": dict(top_n_sigma=1.0),
    "top-n-sigma 0.3": dict(top_n_sigma=0.3),
    "top-k 5": dict(top_k=5),
    "top-k 1000": dict(top_k=1000),
    "typical 0.9": dict(typical_p=0.9),
    "typical 0.2": dict(typical_p=0.2),
    "typical 0": dict(typical_p=0.0),
    "top-p 0.9": dict(top_p=0.9),
    "top-p 0.3": dict(top_p=0.3),
    "top-p 0.99999": dict(top_p=0.99999),
    "min-p 0.05": dict(min_p=0.05),
    "min-p 1": dict(min_p=1.0),
    "xtc always": dict(xtc_probability=1.0, xtc_threshold=0.06),
    "xtc by coin": dict(xtc_probability=0.5, xtc_threshold=0.06),
    "xtc of none": dict(xtc_probability=1.0, xtc_threshold=0.9),
    "xtc of all": dict(xtc_probability=1.0, xtc_threshold=0.0),
    "hlg": dict(hlg={}),
    "hlg, warm, narrow": dict(hlg=dict(width=1.0, shoulder=0.5, toe=2.0, pivot_offset=3.0), temperature=1.4),
    "hlg, straight shoulder": dict(hlg=dict(width=0.5, shoulder=0.0, toe=3.0, pivot_offset=2.0), temperature=0.6),
    "hlg, straight": dict(hlg=dict(width="inf"), temperature=0.9),
    "hlg takes the place of top-k": dict(hlg={}, top_k=3, top_p=0.2, min_p=0.9),
    "sigma and curve": dict(top_n_sigma=1.5, curve=CURVES["soft top"]),
    "curve takes the place of temperature": dict(curve=CURVES["soft top"], temperature=0.0, top_k=1, top_p=0.0),
    "usual": dict(top_k=40, top_p=0.95, min_p=0.05, temperature=0.8),
    "gemma": dict(top_k=64, top_p=0.95),
    "everything": dict(
        logit_bias={"3": 2.0}, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1, penalty_last_n=64,
        dry_multiplier=0.8, dry_sequence_breakers=BREAK, top_n_sigma=2.5, top_k=30, typical_p=0.97, top_p=0.95, min_p=0.01,
        xtc_probability=0.5, xtc_threshold=0.08, temperature=1.2,
    ),
    "penalties and curve": dict(repetition_penalty=1.2, dry_multiplier=1.0, curve=CURVES["plateau"]),
    **{f"curve: {name}": dict(curve=curve) for name, curve in CURVES.items()},
}  # fmt: skip


def history_of(rng):
    """A history over few tokens, so that it repeats, with a repeat of its end planted."""
    body = [int(t) for t in rng.integers(0, 14, 24)]
    return body + body[5:11] + body[2:4] + body[5:10]


def write(name, value):
    rows = ",\n".join(f"{json.dumps(k)}: " + json.dumps(v, separators=(",", ":")) for k, v in value.items())
    (HERE / name).write_text("{\n" + rows + "\n}\n")


def normalised(left):
    order = sorted(left, key=lambda t: (-left[t], t))
    p = np.array([left[t] for t in order])
    p = np.exp(p - logsumexp(p))
    return [[t, float(f"{q:.12e}")] for t, q in zip(order, p)]


def main():
    rng = np.random.default_rng(20)
    inputs, cases = [], []
    for n, spread in [(24, 1.5), (70, 2.5), (300, 3.0), (2, 1.0), (1, 1.0)]:
        logits = np.round(rng.normal(0, spread, n), 4).astype(np.float32)
        inputs.append(dict(logits=[float(f"{l:.9g}") for l in logits], history=[t for t in history_of(rng) if t < n]))
    holes = [None if t % 3 == 1 else l for t, l in enumerate(inputs[1]["logits"])]  # None: -inf
    inputs.append(dict(logits=holes, history=inputs[1]["history"]))
    for name, config in CONFIGS.items():
        for index, given in enumerate(inputs):
            n = len(given["logits"])
            if any(int(t) >= n for t in config.get("logit_bias", {})):
                continue
            logits = np.array([-math.inf if l is None else l for l in given["logits"]], dtype=np.float32)
            for choice, position, mask in [(0, 31 + index, None), (2, 90, [t for t in range(n) if t % 5 != 2])]:
                full = dict(config, seed=1234)
                left = distribution(logits, given["history"], full, choice, position, mask and set(mask))
                token = draw(logits, given["history"], full, choice, position, mask and set(mask))
                expect = normalised(left)
                tops = expect if len(expect) <= 40 else expect[:40]
                cases.append(dict(
                    name=name, config=full, input=index, choice=choice, position=position, masked=mask is not None,
                    kept=len(expect), top=tops, token=token,
                ))  # fmt: skip
    (HERE / "steps.json").write_text(
        '{"inputs":[\n' + ",\n".join(json.dumps(i, separators=(",", ":")) for i in inputs)
        + '\n],"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n"
    )  # fmt: skip

    grid = [-40.0, -30.0, *np.round(np.linspace(-26, 0, 53), 3).tolist(), -0.01, -1e-6, 0.0, 0.7]
    write("curves.json", {
        name: dict(curve=curve, u=grid, f=[float(v) for v in curve_v2(curve["points"])(grid)]) for name, curve in CURVES.items()
    })  # fmt: skip

    draws = {}
    for name, n, scale, config in [
        ("flat", 5003, 0.05, {}),
        ("model-like", 20011, 0.4, dict(temperature=0.8)),
        ("warm", 4096, 0.3, dict(temperature=1.5)),
        ("curve", 6001, 0.4, dict(curve=CURVES["soft top"])),
        ("hlg", 3001, 0.4, dict(hlg={}, temperature=0.9)),
        ("nucleus", 20011, 0.35, dict(top_p=0.95)),
        ("wide nucleus", 5003, 0.05, dict(top_p=0.5, temperature=1.3)),
        ("typical", 3001, 0.3, dict(typical_p=0.6)),
        ("top-k", 20011, 0.2, dict(top_k=50)),
        ("top-k over blocks", 1000, 0.2, dict(top_k=400)),
        ("large seed", 1000, 0.1, dict(seed=0xFEDCBA9876543210)),
    ]:
        config = dict(seed=77) | config
        logits = synthetic(n, 11, scale)
        at = [(0, 0), (0, 1), (1, 0), (3, 100), (0, 4096), (2**33 + 5, 7), (0, 2**35 + 1), (1, 2)]
        tokens = [draw(logits, [], config, choice, position) for choice, position in at]
        draws[name] = dict(n=n, salt=11, scale=scale, config=config, at=at, tokens=tokens)
    write("draws.json", draws)
    print("chi-square 99.9% quantiles", {k: round(float(chi2.ppf(0.999, k)), 3) for k in (5, 9, 11, 15, 19)})


if __name__ == "__main__":
    main()
