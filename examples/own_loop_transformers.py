"""The Trainer of Hugging Face transformers as the local training of any method: train.loop = "...:train"."""

import tempfile

from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from fedquilt import client_update


class WithLoss(nn.Module):  # a Trainer's model gives its loss
    def __init__(self, model, context):
        super().__init__()
        self.model, self.context = model, context

    def forward(self, x, labels):
        return {"loss": self.context.loss(self.model, x, labels)}


@client_update
def train(model, data_loader, context):
    how = {"num_train_epochs": context.epochs, "per_device_train_batch_size": context.batch_size, "learning_rate": 1e-2}
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    rows = {"train_dataset": data_loader.dataset, "data_collator": lambda rows: {"x": rows[0], "labels": rows[1]}}
    with tempfile.TemporaryDirectory() as folder:
        given = TrainingArguments(folder, use_cpu=True, remove_unused_columns=False, seed=context.round, **how, **quiet)
        trainer = Trainer(WithLoss(model, context), given, **rows)
        trainer.remove_callback(PrinterCallback)
        done = trainer.train()
    return {"loss": done.training_loss, "steps": done.global_step}
