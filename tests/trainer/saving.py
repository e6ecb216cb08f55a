"""Scripts with transformers and with Accelerate that save on notice, and say each step.

BEFORE stands for what comes first, OPTIONS for more of TrainingArguments', "out" for the folder.
"""

import re

COMMON = """
import os, sys, time, torch
torch.manual_seed(0)

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        x = torch.full((4,), index / 1e6)
        return {"x": x, "labels": x.sum()}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        loss = (self.linear(x).squeeze(-1) - labels).square().mean()
        return {"loss": loss}
"""
TRAINER = (
    COMMON
    + """
from transformers import Trainer, TrainerCallback, TrainingArguments

class Says(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        say("step", os.environ["DDPJOB_ROUND"], state.global_step, float(state.epoch))
        time.sleep(0.02)

arguments = TrainingArguments(
    "out", max_steps=100_000, save_steps=50_000, per_device_train_batch_size=2, report_to=[],
    use_cpu=True, disable_tqdm=True, logging_steps=50_000, dataloader_num_workers=1, **OPTIONS
)
BEFORE
trainer = Trainer(Net(), arguments, train_dataset=Data(), callbacks=[Says()])
trainer.train()
"""
)
ACCELERATE = (
    COMMON
    + """
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import ProjectConfiguration

class Done:
    steps = 0
    def state_dict(self):
        return {"steps": self.steps}
    def load_state_dict(self, found):
        self.steps = found["steps"]

BEFORE
project = ProjectConfiguration("out", automatic_checkpoint_naming=True)
accelerator, done = Accelerator(cpu=True, project_config=project), Done()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(Data(), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.register_for_checkpointing(done)
if os.path.isdir("out/checkpoints"):
    accelerator.load_state()
for batch in skip_first_batches(loader, done.steps):
    loss = model(**batch)["loss"]
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    done.steps += 1
    say("step", os.environ["DDPJOB_ROUND"], done.steps, float(batch["x"][0, 0]))
    time.sleep(0.02)
"""
)


def steps(log: str, number: int) -> list[tuple[int, float]]:
    """The numbers of the steps that a round has said, and how far it was in the data."""
    found = re.findall(rf"^step {number} (\d+) (\S+)$", log, re.MULTILINE)
    return [(int(step), float(place)) for step, place in found]
