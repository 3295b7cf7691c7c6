"""What asyncchat costs, beside its peers, in one run; see `README.md` here."""
