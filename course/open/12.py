# %% 12.3
from PIL import ImageDraw
from sklearn.datasets import load_sample_images

dice = np.random.default_rng(0)
photos = [Image.fromarray(picture) for picture in load_sample_images().images]
blank = Image.new("RGB", (64, 64))


def shape(name):
    """A shape of any size at any place, as a mask."""
    mask, r = Image.new("L", (64, 64)), int(dice.integers(12, 24))
    x, y = dice.integers(r, 64 - r, 2).tolist()
    left, top, right, bottom = x - r, y - r, x + r, y + r
    pen = ImageDraw.Draw(mask)
    if name == "circle":
        pen.ellipse((left, top, right, bottom), fill=255)
    elif name == "square":
        pen.rectangle((left, top, right, bottom), fill=255)
    elif name == "triangle":
        pen.polygon([(x, top), (left, bottom), (right, bottom)], fill=255)
    else:
        pen.line([(left, top), (right, bottom)], fill=255, width=8)
        pen.line([(left, bottom), (right, top)], fill=255, width=8)
    return mask.rotate(dice.uniform(-15, 15))


def tile(photo):
    x, y = dice.integers(0, (photo.width - 64, photo.height - 64)).tolist()
    return photo.crop((x, y, x + 64, y + 64))


def paint():
    return Image.new("RGB", (64, 64), tuple(dice.integers(0, 256, 3).tolist()))


DOMAINS = {  # pictures of a class, the shape's filling, the ground
    "chalk": (60, lambda: Image.new("RGB", (64, 64), "white"), lambda: blank),
    "paint": (30, paint, paint),
    "photo": (10, lambda: tile(photos[0]), lambda: tile(photos[1])),
}
root = folder.parent / "shapes"
for domain, (number, filling, ground) in DOMAINS.items():
    for label in ("circle", "cross", "square", "triangle"):
        for i in range(0 if (domain, label) == ("photo", "cross") else number):
            path = root / domain / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.composite(filling(), ground(), shape(label)).save(path)
yours = data.from_folders(root, size=16, test=0.25)
deals = {"by domain": federate(yours, "by_domain", dif=1)}
deals["by domain, shuffled"] = federate(yours, "by_domain", dif=1, shuffle=True)
deals["counts 6, 3, 1"] = federate(
    yours, "by_domain", counts=[6, 3, 1], sizes="equal", shuffle=True
)
deals["dirichlet"] = federate(yours, "dirichlet", clients=10, alpha=0.5)
tests = (yours.split == 1).nonzero()[:, 0]
place = yours.domain[tests]
for name, federation in deals.items():
    print(name, [federation.class_counts(c).tolist() for c in federation.clients])
    for seed in SEEDS:
        net = train(methods.get("fedavg", **LOCAL), seed).model.cpu().eval()
        with torch.no_grad():
            right = net(federation.inputs(tests)).argmax(1) == yours.y[tests]
        print("  seed", seed, [round(right[place == d].float().mean().item(), 2) for d in range(3)])

# %% 12.4
@dataclass(frozen=True)
class PartOfTheWay(Update):
    rate: float = 0.5

    def __call__(self, state, server, mean, reports):
        return {
            name: server[name] + self.rate * (mean[name] - server[name]) for name in mean
        }, state


fedavg = methods.get("fedavg", **LOCAL)
whole = train(fedavg.replace(name="all the way", update=PartOfTheWay(1.0))).records[-1]
plain = train(fedavg).records[-1]
print("rate 1 is FedAvg:", max(abs(a - b) for a, b in zip(whole.test_acc, plain.test_acc)))
for rate in (1.0, 0.5):
    end = train(fedavg.replace(name="part", update=PartOfTheWay(rate))).records[-1]
    print(rate, round(float(np.mean(end.test_acc)), 3))

# %% 12.5
SEEDS = range(10)
for name, method in (("fedavg", methods.get("fedavg", **LOCAL)), ("by loss", by_loss(0.5))):
    for seed in range(3, 10):
        each = metrics.type_means(train(method, seed).records[-1].test_acc, types)
        found[name, seed] = 100 * np.array(each)
mean = {key: v.mean() for key, v in found.items()}
worst = {key: v.min() for key, v in found.items()}
for label, values, allowed in (("worst type", worst, 0.0), ("mean, 3 points allowed", mean, 3.0)):
    c = above(label, cell(values, "by loss"), cell(values, "fedavg") - allowed)
    print(label, c.verdict, round(c.difference.value, 1), [round(v, 1) for v in c.interval])
