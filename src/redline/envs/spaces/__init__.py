"""How values of Gymnasium spaces are carried, checked and split."""
