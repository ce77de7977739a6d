package measure

import (
	"fmt"

	grebev1 "grebe/api/grebe/v1"
	"grebe/eval"
)

// Ways that blendWays adds.
const wholeBlend = "blend, whole"

func blendAt(share float64) string { return fmt.Sprintf("blend, %.2f", share) }

var blendShares = []float64{0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7}

// blendWays asks for blended prompts with several budgets, and for whole ones. Rankings with the items first come
// before: they make the items' blocks.
func blendWays(ways []eval.Way) []eval.Way {
	var out []eval.Way
	for _, w := range ways {
		if w.Prefix != "blend" {
			out = append(out, w)
			continue
		}
		at := func(name string, share float64) {
			w.Name, w.Budget = name, &grebev1.Budget{Items: &share, History: &share}
			out = append(out, w)
		}
		at(wholeBlend, 1)
		for _, share := range blendShares {
			at(blendAt(share), share)
		}
		break // of one model
	}
	return out
}

// budgets says which budget reaches the target.
func (c *Models) budgets(r *eval.Report) string {
	for _, share := range blendShares {
		if e, ok := r.Of(blendAt(share), wholeBlend, c.Seed); ok && e.Value >= c.Target {
			return fmt.Sprintf("Blended prompts reach %s of whole ones' NDCG@10 when %.0f %% is computed again: put blend: "+
				"{items: %g, history: %g} under the model in grebe.yaml.",
				e, 100*share, share, share)
		}
	}
	return fmt.Sprintf("No budget up to %g reaches %g of whole prompts' NDCG@10: blending is not for this model.",
		blendShares[len(blendShares)-1], c.Target)
}
