"""The Trainer of Lightning as the local training of any method: train.loop = "...:train"."""

import lightning
import torch

from fedquilt import client_update


class Lit(lightning.LightningModule):
    def __init__(self, model, context):
        super().__init__()
        self.model, self.of = model, context

    def training_step(self, batch, _):
        loss = self.of.loss(self.model, *batch)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@client_update
def train(model, data_loader, context):
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = lightning.Trainer(max_epochs=context.epochs, accelerator="cpu", devices=1, **off)
    trainer.fit(Lit(model, context), data_loader)
    return {"loss": float(trainer.callback_metrics["loss"])}
