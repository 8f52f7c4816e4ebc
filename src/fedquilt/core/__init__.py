"""The nouns and the algebra: params, records, seeds, tables, nets, exchanges, local training."""
