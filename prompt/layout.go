package prompt

import (
	"errors"

	"grebe/plan"
)

// Layout is a plan and where its parts are.
type Layout struct {
	Plan *plan.Plan
	// User is the user's segment, Items the first of the items' consecutive ones, or the only one of a Causal
	// prompt. Absent: −1.
	User, Items int
	// ItemAt has, of a Causal prompt, the first token of each item in its segment.
	ItemAt []int
	// Answers is the first answering segment: the instruction, or the first of one discriminant per
	// item. The answer is at a segment's last token.
	Answers int
	// End is the position after the last token of a generation's prompt.
	End int
}

// add appends a segment that starts at pos and returns its index and the position after it.
func (l *Layout) add(kind plan.Kind, tokens []int32, pos int, sees []int32) (int, int) {
	l.Plan.Segments = append(l.Plan.Segments, plan.Segment{Kind: kind, Tokens: tokens, Start: pos, Sees: sees})
	return len(l.Plan.Segments) - 1, pos + len(tokens)
}

// begin starts a layout with the preamble, if there is one; sees lists it.
func (b *Builder) begin(segments int) (l Layout, sees []int32, pos int) {
	l = Layout{Plan: &plan.Plan{Segments: make([]plan.Segment, 0, segments+3)}, User: -1, Items: -1}
	if len(b.preamble) > 0 {
		_, pos = l.add(plan.Preamble, b.preamble, 0, nil)
		sees = []int32{0}
	}
	return l, sees, pos
}

// addItems appends the items, all at pos, and returns their indices and the position after the longest.
func (l *Layout) addItems(items [][]int32, pos int, sees []int32) ([]int32, int) {
	l.Items = len(l.Plan.Segments)
	end := pos
	idx := make([]int32, len(items))
	for i, tokens := range items {
		n, after := l.add(plan.Item, tokens, pos, sees)
		idx[i], end = int32(n), max(end, after)
	}
	return idx, end
}

// addLine appends the items as one segment, one after the other, and returns it and the position after it.
func (l *Layout) addLine(items [][]int32, pos int, sees []int32) (int, int) {
	var line []int32
	l.ItemAt = make([]int, len(items))
	for i, tokens := range items {
		l.ItemAt[i] = len(line)
		line = append(line, tokens...)
	}
	return l.add(plan.Item, line, pos, sees)
}

// ErrNoInstruction says that nothing in the prompt sees all that the answer depends on.
var ErrNoInstruction = errors.New("the model's prompt has no instruction, which this way of scoring needs")

// Rank lays out identifier scoring: one instruction that sees everything and answers at its last
// token.
func (b *Builder) Rank(order plan.Order, user []int32, items [][]int32) (Layout, error) {
	l, sees, pos := b.begin(len(items) + 2)
	if len(b.instruction) == 0 {
		return l, ErrNoInstruction
	}
	if order == plan.UserFirst {
		l.User, pos = l.add(plan.User, user, pos, sees)
		sees = with(sees, int32(l.User))
		idx, end := l.addItems(items, pos, sees)
		l.Answers, _ = l.add(plan.Instruction, b.instruction, end, with(sees, idx...))
		return l, nil
	}
	if order == plan.CausalItems {
		if len(b.leadIn) > 0 {
			var lead int
			lead, pos = l.add(plan.Preamble, b.leadIn, pos, sees)
			sees = with(sees, int32(lead))
		}
		l.Items, pos = l.addLine(items, pos, sees)
		sees = with(sees, int32(l.Items))
		l.User, pos = l.add(plan.User, user, pos, sees)
		l.Answers, _ = l.add(plan.Instruction, b.instruction, pos, with(sees, int32(l.User)))
		return l, nil
	}
	if order == plan.Causal {
		l.User, pos = l.add(plan.User, user, pos, sees)
		sees = with(sees, int32(l.User))
		l.Items, pos = l.addLine(items, pos, sees)
		l.Answers, _ = l.add(plan.Instruction, b.instruction, pos, with(sees, int32(l.Items)))
		return l, nil
	}
	sees, pos = b.leadItems(&l, sees, pos, items)
	l.User, pos = l.add(plan.User, user, pos, sees)
	l.Answers, _ = l.add(plan.Instruction, b.instruction, pos, with(sees, int32(l.User)))
	return l, nil
}

// leadItems appends the lead-in and the items, and returns what a user after them sees, and where
// it starts.
func (b *Builder) leadItems(l *Layout, sees []int32, pos int, items [][]int32) ([]int32, int) {
	if len(b.leadIn) > 0 {
		var lead int
		lead, pos = l.add(plan.Preamble, b.leadIn, pos, sees)
		sees = with(sees, int32(lead))
	}
	idx, end := l.addItems(items, pos, sees)
	return with(sees, idx...), end
}

// ErrCausal says that a way of scoring needs items that do not see each other.
var ErrCausal = errors.New("an ordinary prompt is scored by identifier, not item by item")

// Pointwise lays out one discriminant per item. User-first the result equals separate prompts
// [preamble, user, item, instruction].
func (b *Builder) Pointwise(order plan.Order, user []int32, items [][]int32) (Layout, error) {
	if order >= plan.Causal {
		return Layout{}, ErrCausal
	}
	if order == plan.UserFirst {
		return b.pointwiseUserFirst(user, items), nil
	}
	l, before, pos := b.begin(2*len(items) + 1)
	if len(b.instruction) == 0 {
		return l, ErrNoInstruction
	}
	sees, pos := b.leadItems(&l, before, pos, items)
	head := sees[:len(sees)-len(items)]
	l.User, pos = l.add(plan.User, user, pos, sees)
	l.Answers = len(l.Plan.Segments)
	for i := range items {
		l.add(plan.Discriminant, b.instruction, pos, with(head, int32(l.Items+i), int32(l.User)))
	}
	return l, nil
}

// Targets lays out candidates that answer themselves, as a model of events has them: user-first each at its own
// last token. Item-first the items come as in Pointwise, and once more behind the user, where they see the first
// one and the user, and answer.
func (b *Builder) Targets(order plan.Order, user []int32, items [][]int32) (Layout, error) {
	l, sees, pos := b.begin(2*len(items) + 1)
	if order == plan.UserFirst {
		l.User, pos = l.add(plan.User, user, pos, sees)
		l.addItems(items, pos, with(sees, int32(l.User)))
		l.Answers = l.Items
		return l, nil
	}
	all, pos := b.leadItems(&l, sees, pos, items)
	head := all[:len(all)-len(items)]
	l.User, pos = l.add(plan.User, user, pos, all)
	l.Answers = len(l.Plan.Segments)
	for i, tokens := range items {
		l.add(plan.Discriminant, tokens, pos, with(head, int32(l.Items+i), int32(l.User)))
	}
	return l, nil
}

func (b *Builder) pointwiseUserFirst(user []int32, items [][]int32) Layout {
	l, sees, pos := b.begin(2*len(items) + 1)
	l.User, pos = l.add(plan.User, user, pos, sees)
	sees = with(sees, int32(l.User))
	l.addItems(items, pos, sees)
	if len(b.instruction) == 0 {
		l.Answers = l.Items // the answer is at the item's own last token
		return l
	}
	l.Answers = len(l.Plan.Segments)
	for i, tokens := range items {
		l.add(plan.Discriminant, b.instruction, pos+len(tokens), with(sees, int32(l.Items+i)))
	}
	return l
}

// Score lays out separate prompts [preamble, query, item, instruction], or [preamble, item, query,
// instruction] when itemFirst, that share what they have in common.
func (b *Builder) Score(query []int32, items [][]int32, itemFirst bool) Layout {
	if !itemFirst {
		return b.pointwiseUserFirst(query, items)
	}
	l, sees, pos := b.begin(2 * len(items))
	l.addItems(items, pos, sees)
	question := append(append([]int32(nil), query...), b.instruction...)
	if len(question) == 0 {
		l.Answers = l.Items
		return l
	}
	l.Answers = len(l.Plan.Segments)
	for i, tokens := range items {
		l.add(plan.Discriminant, question, pos+len(tokens), with(sees, int32(l.Items+i)))
	}
	return l
}

// with returns a new list of sees and more.
func with(sees []int32, more ...int32) []int32 {
	out := make([]int32, 0, len(sees)+len(more))
	return append(append(out, sees...), more...)
}

// ItemsAlone lays out what an item-first prompt begins with, up to the items: to compute their KV.
func (b *Builder) ItemsAlone(items [][]int32) Layout {
	l, sees, pos := b.begin(len(items))
	b.leadItems(&l, sees, pos, items)
	l.Answers = -1
	return l
}

// Generate lays out a generation: preamble, user and its instruction, one after the other. Codes
// follow at End and see all of it. The answer is at the last token.
func (b *Builder) Generate(user []int32) Layout {
	l, sees, pos := b.begin(2)
	l.User, pos = l.add(plan.User, user, pos, sees)
	l.Answers = l.User
	if len(b.generate) > 0 {
		l.Answers, pos = l.add(plan.Instruction, b.generate, pos, with(sees, int32(l.User)))
	}
	l.End = pos
	return l
}
