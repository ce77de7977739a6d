package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/human"
	"grebe/internal/wire"
	"grebe/prompt"
)

// Complete answers a request for completions, as the beam search of SGLang and FlashRec does: each choice is a path of
// the catalog, best first. The prompt is the client's, without the model's preamble and instruction.
func (s *Service) Complete(ctx context.Context, req *wire.Completion) (*wire.Completed, error) {
	created := time.Now().Unix()
	name := s.generator(req.Model)
	sl, err := s.slot(name)
	if err != nil {
		return nil, err
	}
	field := "prompt"
	if req.Messages != nil {
		field = "messages"
	}
	n, depth, err := sl.checkCompletion(req)
	if err != nil {
		return nil, err
	}
	ask := &grebev1.RecommendRequest{Model: sl.name, N: int32(n), BeamWidth: int32(req.BestOf),
		Temperature: req.Temperature,
		Seed:        req.Seed, DeadlineMs: req.DeadlineMs, WholePrompt: true, OnePerPath: true,
		User: &grebev1.User{Text: req.Prompt.Text, Tokens: req.Prompt.Tokens}}
	resp, err := s.Recommend(ctx, ask)
	if err != nil {
		return nil, inCompletion(err, field)
	}
	out := &wire.Completed{ID: resp.RequestId, Model: resp.Model, Created: created, Seed: resp.Seed, Notes: resp.Notes}
	p := sl.serving().Prompt
	for _, x := range resp.Results {
		out.Choices = append(out.Choices, wire.Choice{Text: p.CodeText(x.Codes), Item: x.Id, Codes: x.Codes, Score: x.Score})
	}
	read, completion, cached := resp.Usage.PromptTokens, int32(depth*len(out.Choices)), resp.Usage.CachedTokens
	out.Usage = &grebev1.CompatibleUsage{PromptTokens: read, CompletionTokens: completion, TotalTokens: read + completion,
		CachedTokens: cached, PromptTokensDetails: &grebev1.PromptDetails{CachedTokens: cached}}
	return out, nil
}

// generator returns the model for completions. If the client names none, it is the only model that recommends from a
// prompt.
func (s *Service) generator(name string) string {
	if name = s.compatibleModel(name); name != "" {
		return name
	}
	only := ""
	for _, sl := range s.served {
		if sl.serving().Generate == nil {
			continue
		}
		if only != "" {
			return ""
		}
		only = sl.name
	}
	return only
}

// checkCompletion checks a request for completions. It returns the number of choices and the tokens of each.
func (sl *slot) checkCompletion(req *wire.Completion) (n, depth int, err error) {
	m := sl.serving()
	if m.Generate == nil {
		return 0, 0, Errorf(Unprocessable, "model", "%q has no codes: it cannot generate items of the catalog", sl.name)
	}
	if n = req.N; n == 0 {
		n = 1
	}
	if req.BestOf > 0 && req.BestOf < n {
		return 0, 0, Errorf(InvalidArgument, "best_of", "%d is below n, %d", req.BestOf, n)
	}
	depth = m.Prompt.Depth()
	if req.MaxTokens > 0 && req.MaxTokens < depth {
		return 0, 0, Errorf(InvalidArgument, "max_tokens", "%d: a path of the catalog has %s", req.MaxTokens,
			human.Count(depth, "token"))
	}
	if req.Messages != nil {
		req.Prompt, err = chatPrompt(m.Prompt, req)
		return n, depth, err
	}
	if req.Prompt == nil {
		return 0, 0, Errorf(InvalidArgument, "prompt", "is missing")
	}
	return n, depth, nil
}

// chatPrompt returns the prompt of a chat.
func chatPrompt(b *prompt.Builder, req *wire.Completion) (*grebev1.Input, error) {
	all, size := make([]prompt.Message, len(req.Messages)), 0
	for i, m := range req.Messages {
		all[i] = prompt.Message(m)
		if size += len(m.Text); size > maxText {
			return nil, Errorf(TooLarge, "messages", "more than %d bytes", maxText)
		}
	}
	text, err := b.Chat(all, req.ChatOptions)
	var option *prompt.OptionError
	switch {
	case errors.Is(err, prompt.ErrNoChat):
		return nil, Errorf(Unprocessable, "messages", "%v", err)
	case errors.As(err, &option):
		return nil, Errorf(InvalidArgument, "chat_template_kwargs", "%v", err)
	case err != nil:
		return nil, Errorf(InvalidArgument, "messages", "the chat template refuses the messages: %v", err)
	}
	return &grebev1.Input{Text: &text}, nil
}

// inCompletion names the fields of a recommendation's error as a request for completions has them.
func inCompletion(err error, prompt string) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	field, found := strings.CutPrefix(e.field, "user.tokens")
	switch {
	case found:
		return e.at(prompt + field)
	case e.field == "user" || e.field == "user.text":
		return e.at(prompt)
	case e.field == "beam_width":
		return e.at("best_of")
	}
	return err
}

// wholePrompt returns the tokens of a request whose user is the whole prompt.
func (c *call) wholePrompt(req *grebev1.RecommendRequest) ([]int32, error) {
	u := req.User
	switch {
	case u == nil || u.Text == nil && u.Tokens == nil:
		return nil, Errorf(InvalidArgument, "user", "give text or tokens: with whole_prompt they are the prompt")
	case u.Id != "" || len(u.History) > 0 || len(u.Events) > 0 || len(u.NewEvents) > 0 || u.Text != nil && u.Tokens != nil:
		return nil, Errorf(InvalidArgument, "user", "give only text or only tokens: with whole_prompt they are the prompt")
	case req.ExcludeSeen:
		return nil, Errorf(InvalidArgument, "exclude_seen", "a request with whole_prompt has no history")
	case req.Fallback != "":
		return nil, Errorf(InvalidArgument, "fallback", "a request with whole_prompt has no user")
	}
	if err := c.checkInput(path{"user", -1}, u.Text, u.Tokens); err != nil || u.Tokens != nil {
		return u.Tokens, err
	}
	ids, err := c.model.Prompt.CompletionTokens(*u.Text)
	if err != nil {
		return nil, promptError("user.text", err)
	}
	return ids, nil
}
