"""PyTorch Geometric's layers and models as a source, each on a small graph with an edge list.

What asks for its compiled extensions (torch-sparse, torch-cluster, pyg-lib) is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .modules import exported, filled
from .sources import Example

_Made = tuple[nn.Module, tuple[Any, ...]]
NODES, EDGES, WIDTH = 10, 24, 8


def _graph() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of nodes, and edges of which no two are the same; a node has none."""
    generator = torch.Generator().manual_seed(5)
    pairs = torch.randperm((NODES - 1) * (NODES - 2), generator=generator)[:EDGES]
    source, target = pairs // (NODES - 2), pairs % (NODES - 2)
    edges = torch.stack([source, target + (target >= source)])
    return torch.randn(NODES, WIDTH, generator=generator), edges


def _layers() -> dict[str, Callable[[], _Made]]:
    from torch_geometric import nn as g

    x, edges = _graph()
    weight, attributes = torch.rand(EDGES), torch.randn(EDGES, 4)
    kinds, batch = torch.arange(EDGES) % 3, torch.arange(NODES) // 5
    points, slots = torch.rand(NODES, 3), torch.rand(EDGES, 2)
    pair, w = (x, edges), WIDTH

    def mlp(*sizes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(sizes[0], 16), nn.ReLU(), nn.Linear(16, sizes[-1]))

    def aggregated(aggregation: nn.Module) -> Callable[[], _Made]:
        return lambda: (aggregation, (x, batch, None, 2))  # sizes of results may not depend on data

    found: dict[str, Callable[[], _Made]] = {
        "AGNNConv": lambda: (g.AGNNConv(), pair),
        "APPNP": lambda: (g.APPNP(3, 0.1), pair),
        "ARMAConv": lambda: (g.ARMAConv(w, 6, 2, 2), pair),
        "AntiSymmetricConv": lambda: (g.AntiSymmetricConv(w), pair),
        "CGConv": lambda: (g.CGConv(w, 4), (x, edges, attributes)),
        "ChebConv": lambda: (g.ChebConv(w, 6, 3), pair),
        "ClusterGCNConv": lambda: (g.ClusterGCNConv(w, 6), pair),
        "DNAConv": lambda: (g.DNAConv(w, 2, 1), (torch.randn(NODES, 3, w), edges)),
        "DirGNNConv": lambda: (g.DirGNNConv(g.SAGEConv(w, 6)), pair),
        "EGConv": lambda: (g.EGConv(w, 8, ["sum", "mean", "max"], num_heads=4), pair),
        "EdgeConv": lambda: (g.EdgeConv(mlp(2 * w, 6)), pair),
        "FAConv": lambda: (g.FAConv(w), (x, torch.randn(NODES, w), edges)),
        "FeaStConv": lambda: (g.FeaStConv(w, 6, 2), pair),
        "FiLMConv": lambda: (g.FiLMConv(w, 6), pair),
        "FiLMConv relations": lambda: (g.FiLMConv(w, 6, 3), (x, edges, kinds)),
        "GATConv": lambda: (g.GATConv(w, 6, 2), pair),
        "GATConv edges": lambda: (g.GATConv(w, 6, 2, edge_dim=4), (x, edges, attributes)),
        "GATv2Conv": lambda: (g.GATv2Conv(w, 6, 2), pair),
        "GATv2Conv edges": lambda: (g.GATv2Conv(w, 6, 2, edge_dim=4), (x, edges, attributes)),
        "GCN2Conv": lambda: (g.GCN2Conv(w, 0.1, 0.5, 1), (x, torch.randn(NODES, w), edges)),
        "GCNConv": lambda: (g.GCNConv(w, 6), pair),
        "GCNConv weights": lambda: (g.GCNConv(w, 6), (x, edges, weight)),
        "GENConv": lambda: (g.GENConv(w, 6), pair),
        "GENConv power": lambda: (g.GENConv(w, 6, "powermean"), (x.abs(), edges)),
        "GINConv": lambda: (g.GINConv(mlp(w, 6), train_eps=True), pair),
        "GINEConv": lambda: (g.GINEConv(mlp(w, 6), edge_dim=4), (x, edges, attributes)),
        "GMMConv": lambda: (g.GMMConv(w, 6, 2, 3), (x, edges, slots)),
        "GPSConv": lambda: (g.GPSConv(w, g.GINConv(mlp(w, w)), 2), (x, edges, batch)),
        "GatedGraphConv": lambda: (g.GatedGraphConv(w, 2), pair),
        "GeneralConv": lambda: (g.GeneralConv(w, 6, 4), (x, edges, attributes)),
        "GraphConv": lambda: (g.GraphConv(w, 6), pair),
        "GraphConv max": lambda: (g.GraphConv(w, 6, "max"), (x, edges, weight)),
        "HEATConv": lambda: (
            g.HEATConv(w, 6, 3, 3, 4, 4, 4, heads=2),
            (x, edges, torch.arange(NODES) % 3, kinds, attributes),
        ),
        "HypergraphConv": lambda: (g.HypergraphConv(w, 6), (x, torch.stack([edges[0], kinds]))),
        "LEConv": lambda: (g.LEConv(w, 6), pair),
        "LGConv": lambda: (g.LGConv(), pair),
        "MFConv": lambda: (g.MFConv(w, 6, 4), pair),
        "MixHopConv": lambda: (g.MixHopConv(w, 6), pair),
        "NNConv": lambda: (g.NNConv(w, 6, mlp(4, w * 6)), (x, edges, attributes)),
        "PDNConv": lambda: (g.PDNConv(w, 6, 4, 8), (x, edges, attributes)),
        "PNAConv": lambda: (
            g.PNAConv(w, 6, ["mean", "min", "max", "std"], ["identity", "amplification"], torch.ones(5).long()),
            pair,
        ),
        "PointGNNConv": lambda: (g.PointGNNConv(mlp(w, 3), mlp(w + 3, 6), mlp(6, w)), (x, points, edges)),
        "PointNetConv": lambda: (g.PointNetConv(mlp(w + 3, 6)), (x, points, edges)),
        "PointTransformerConv": lambda: (g.PointTransformerConv(w, 6), (x, points, edges)),
        "PPFConv": lambda: (g.PPFConv(mlp(w + 4, 6)), (x, points, nn.functional.normalize(points - 0.5), edges)),
        "RGATConv": lambda: (g.RGATConv(w, 6, 3), (x, edges, kinds)),
        "RGCNConv": lambda: (g.RGCNConv(w, 6, 3), (x, edges, kinds)),
        "RGCNConv bases": lambda: (g.RGCNConv(w, 6, 3, num_bases=2), (x, edges, kinds)),
        "FastRGCNConv": lambda: (g.FastRGCNConv(w, 6, 3), (x, edges, kinds)),
        "ResGatedGraphConv": lambda: (g.ResGatedGraphConv(w, 6), pair),
        "SAGEConv": lambda: (g.SAGEConv(w, 6), pair),
        "SAGEConv lstm": lambda: (g.SAGEConv(w, 6, "lstm"), (x, edges[:, edges[1].argsort(stable=True)])),
        "SAGEConv max": lambda: (g.SAGEConv(w, 6, "max", project=True), pair),
        "SAGEConv median": lambda: (g.SAGEConv(w, 6, "median"), pair),
        "SAGEConv softmax": lambda: (g.SAGEConv(w, 6, "softmax"), pair),
        "SGConv": lambda: (g.SGConv(w, 6, 2), pair),
        "SSGConv": lambda: (g.SSGConv(w, 6, 0.1, 2), pair),
        "SignedConv": lambda: (g.SignedConv(w, 6, True), (x, edges, edges.flip(0))),
        "SimpleConv": lambda: (g.SimpleConv("mean", "cat"), pair),
        "SuperGATConv": lambda: (g.SuperGATConv(w, 6, 2), pair),
        "TAGConv": lambda: (g.TAGConv(w, 6), pair),
        "TransformerConv": lambda: (g.TransformerConv(w, 6, 2, beta=True), pair),
        "TransformerConv edges": lambda: (g.TransformerConv(w, 6, 2, edge_dim=4), (x, edges, attributes)),
        "WLConvContinuous": lambda: (g.WLConvContinuous(), pair),
        "ASAPooling": lambda: (g.ASAPooling(w), (x, edges, None, batch)),
        "MemPooling": lambda: (g.MemPooling(w, 6, 2, 3), (x, batch)),
        "SAGPooling": lambda: (g.SAGPooling(w), (x, edges, None, batch)),
        "TopKPooling": lambda: (g.TopKPooling(w), (x, edges, None, None, batch)),
        "global_add_pool": lambda: (_Called(g.global_add_pool), (x, batch)),
        "global_max_pool": lambda: (_Called(g.global_max_pool), (x, batch)),
        "global_mean_pool": lambda: (_Called(g.global_mean_pool), (x, batch)),
        "BatchNorm": lambda: (g.BatchNorm(w), (x,)),
        "DiffGroupNorm": lambda: (g.DiffGroupNorm(w, 2), (x,)),
        "GraphNorm": lambda: (g.GraphNorm(w), (x, batch)),
        "GraphSizeNorm": lambda: (g.GraphSizeNorm(), (x, batch)),
        "InstanceNorm": lambda: (g.InstanceNorm(w), (x, batch)),
        "LayerNorm": lambda: (g.LayerNorm(w), (x, batch)),
        "MeanSubtractionNorm": lambda: (g.MeanSubtractionNorm(), (x, batch)),
        "MessageNorm": lambda: (g.MessageNorm(True), (x, torch.randn(NODES, w))),
        "PairNorm": lambda: (g.PairNorm(), (x, batch)),
        "AttentionalAggregation": aggregated(g.AttentionalAggregation(mlp(w, 1))),
        "DeepSetsAggregation": aggregated(g.DeepSetsAggregation(mlp(w, 6), mlp(6, 5))),
        "GRUAggregation": aggregated(g.GRUAggregation(w, 6)),
        "LSTMAggregation": aggregated(g.LSTMAggregation(w, 6)),
        "MedianAggregation": aggregated(g.MedianAggregation()),
        "MulAggregation": aggregated(g.MulAggregation()),
        "MultiAggregation": aggregated(g.MultiAggregation(["mean", "max", "std"])),
        "PowerMeanAggregation": lambda: (g.PowerMeanAggregation(True), (x.abs(), batch)),
        "QuantileAggregation": aggregated(g.QuantileAggregation([0.2, 0.7])),
        "Set2Set": aggregated(g.Set2Set(w, 2)),
        "SetTransformerAggregation": aggregated(g.SetTransformerAggregation(w, heads=2)),
        "SoftmaxAggregation": aggregated(g.SoftmaxAggregation(learn=True)),
        "SortAggregation": aggregated(g.SortAggregation(3)),
        "VarAggregation": aggregated(g.VarAggregation()),
        "AttentiveFP": lambda: (g.AttentiveFP(w, 16, 6, 4, 2, 2), (x, edges, attributes, batch)),
        "EdgeCNN": lambda: (g.EdgeCNN(w, 16, 2, 6), pair),
        "GAT": lambda: (g.GAT(w, 16, 2, 6, heads=2), pair),
        "GAT v2": lambda: (g.GAT(w, 16, 2, 6, v2=True, heads=2, jk="cat"), pair),
        "GCN": lambda: (g.GCN(w, 16, 2, 6), pair),
        "GCN lstm": lambda: (g.GCN(w, 16, 3, 6, norm="layer_norm", jk="lstm"), pair),
        "GIN": lambda: (g.GIN(w, 16, 2, 6, norm="batch_norm"), pair),
        "GraphSAGE": lambda: (g.GraphSAGE(w, 16, 2, 6), pair),
        "GraphUNet": lambda: (g.GraphUNet(w, 16, 6, 2), pair),
        "LINKX": lambda: (g.LINKX(NODES, w, 16, 6, 2), pair),
        "LightGCN": lambda: (g.LightGCN(NODES, 16, 2), (edges,)),
        "MLP": lambda: (g.MLP([w, 16, 6]), (x,)),
        "NeuralFingerprint": lambda: (g.NeuralFingerprint(w, 16, 6, 2), (x, edges, batch)),
        "PMLP": lambda: (g.PMLP(w, 16, 6, 2), pair),
        "PNA": lambda: (
            g.PNA(w, 16, 2, 6, aggregators=["mean", "max"], scalers=["identity"], deg=torch.ones(5).long()),
            pair,
        ),
        "Polynormer": lambda: (g.Polynormer(w, 16, 6), (x, edges, batch)),
        "SGFormer": lambda: (g.SGFormer(w, 16, 6), (x, edges, batch)),
        "SchNet": lambda: (_Molecule(), (torch.arange(NODES) % 5 + 1, points * 4, edges, batch)),
    }
    return found


class _Called(nn.Module):
    """A function as a module, over the two graphs of the batch."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return self.function(x, batch, 2)


class _Molecule(nn.Module):
    """SchNet over edges that are given: it would ask torch-cluster for them."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric import nn as g

        self.model = g.SchNet(16, 16, 2, 10, interaction_graph=self._edges)
        self.edges = torch.zeros(2, 0, dtype=torch.int64)

    def _edges(self, points: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.edges, (points[self.edges[0]] - points[self.edges[1]]).norm(dim=-1)

    def forward(self, atoms: torch.Tensor, points: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> Any:
        self.edges = edges
        return self.model(atoms, points, batch)


class Pyg:
    """Convolutions, poolings, normalizations, aggregations and models of ``torch_geometric.nn``."""

    def names(self) -> list[str]:
        """The layers and models."""
        return sorted(_layers())

    def variants(self, name: str) -> tuple[str, ...]:
        """One call."""
        return ("base",)

    def make(self, name: str, variant: str) -> Example:
        """The layer and its call."""
        torch.manual_seed(0)
        module, args = _layers()[name]()
        return Example(filled(module), args, export=exported)
