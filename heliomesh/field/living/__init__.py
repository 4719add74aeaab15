"""Networks that change while they run: noticing it, planning anew, growing scopes and dropping links."""
