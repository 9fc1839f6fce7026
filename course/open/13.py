# %% 13.3
plain_run = flower.run_local(
    methods.get("fedavg", batch_size=8), federation, model, ROUNDS, seed=SEED
)
print(laid_open(found, 2, 3).to_string())
print(laid_open(plain_run, 2, 3).to_string())

# %% 13.4
from fedbook.flower.records import pack


class Noisy(flower.LocalGrid):
    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for reply in replies:
            if "measured" in reply.content:
                sent = unpack(reply.content, "measured")
                h_bar = sent["values"]["h"]
                length = h_bar.norm() / len(h_bar) ** 0.5
                h_bar += sigma * length * torch.randn(h_bar.shape, generator=dice)
                pack(reply.content, "measured", sent)
                if message_round(reply) == "1":
                    heard[found._ids[reply.metadata.src_node_id]] = h_bar
        return replies


def message_round(reply):
    return reply.metadata.group_id


for sigma in (0.0, 0.5, 1.0, 2.0, 5.0, 20.0):
    right, kept = [], []
    for seed in range(5):
        dice = torch.Generator().manual_seed(seed)
        heard = {}
        noisy_grid = Noisy(app, [c.id for c in federation.clients])
        noisy = flower.run_local(method, federation, model, 1, seed=SEED, grid=noisy_grid)
        u = F.normalize(torch.stack([heard[k] for k in ids]), dim=1)
        guess = (u @ u.T).fill_diagonal_(-2).argmax(1)
        right.append(int((types[guess] == types).sum()))
        kept.append(round(noisy.records[-1].log["clustering_accuracy"], 2))
    print("noise", sigma, "guessed", right, "of", len(ids), "clustering accuracy", kept)
