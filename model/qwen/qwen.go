// Package qwen registers the dense Qwen2, Qwen2.5 and Qwen3 models.
package qwen

import (
	"fmt"

	"grebe/model"
	"grebe/model/decoder"
)

func init() {
	model.Register("Qwen2ForCausalLM", qwen2)
	model.Register("Qwen3ForCausalLM", qwen3)
}

// qwen2 always has biases on queries, keys and values, and no others.
func qwen2(c *model.Checkpoint) (model.Model, error) {
	return decoder.Build(c, decoder.Features{QKVBias: true})
}

// qwen3 norms queries and keys instead. Its heads have 128 values unless the config says otherwise.
func qwen3(c *model.Checkpoint) (model.Model, error) {
	if !c.Config.HeadDimGiven {
		if err := c.Config.SetHeadDim(128); err != nil {
			return nil, fmt.Errorf("qwen: %w", err)
		}
	}
	bias := c.Config.AttentionBias
	return decoder.Build(c, decoder.Features{QKNorm: true, QKVBias: bias, OutBias: bias})
}
