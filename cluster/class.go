package cluster

import (
	"context"

	"grebe/cluster/coord"
	"grebe/cluster/member"
)

// Class returns the numerics class that most of the registered nodes have, the first by name if several do. It returns
// "" if no node is registered.
func Class(ctx context.Context, c coord.Coordinator) (string, error) {
	entries, err := c.List(ctx, nodesKey)
	if err != nil {
		return "", err
	}
	count, best := map[string]int{}, ""
	for _, e := range entries {
		r, err := member.Decode(e.Data)
		if err != nil || !r.Has(member.Node) || len(r.Models) == 0 {
			continue
		}
		class := r.Models[0].Numerics
		count[class]++
		if best == "" || count[class] > count[best] || count[class] == count[best] && class < best {
			best = class
		}
	}
	return best, nil
}
