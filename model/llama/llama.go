// Package llama registers the Llama 2 and 3 models.
package llama

import (
	"grebe/model"
	"grebe/model/decoder"
)

func init() { model.Register("LlamaForCausalLM", llama) }

func llama(c *model.Checkpoint) (model.Model, error) {
	bias := c.Config.AttentionBias
	return decoder.Build(c, decoder.Features{QKVBias: bias, OutBias: bias, MLPBias: c.Config.MLPBias})
}
