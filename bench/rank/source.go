package rank

import (
	"fmt"
	"sync"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/workload"
)

// source makes the requests of a stream, once, for all who send them.
type source struct {
	items [][]int32 // tokens of all items

	mu    sync.Mutex // guards what is below
	w     *workload.Workload
	made  []*request
	users map[int][]int32
}

type request struct {
	at  time.Duration
	msg *grebev1.RankRequest
}

// deadlineMs is long: a closed loop measures work, and must not lose any.
const deadlineMs = 60_000

func newSource(spec workload.Spec, vocab int) (*source, error) {
	spec.Vocab = vocab
	w, err := workload.New(spec)
	if err != nil {
		return nil, err
	}
	s := &source{w: w, users: map[int][]int32{}}
	for j := range spec.Items {
		s.items = append(s.items, w.Item(j))
	}
	return s, nil
}

// at returns request i.
func (s *source) at(i int) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.made) <= i {
		s.made = append(s.made, s.next())
	}
	return s.made[i]
}

func (s *source) next() *request {
	r := s.w.Next()
	tokens, ok := s.users[r.User]
	if !ok {
		tokens = s.w.UserAt(r.User, r.Version)
		s.users[r.User] = tokens
	}
	msg := &grebev1.RankRequest{
		User: &grebev1.User{Id: fmt.Sprint("u", r.User), Tokens: tokens}, TopK: 10,
		Candidates: make([]*grebev1.Item, len(r.Items)),
	}
	for i, j := range r.Items {
		identifier := int32(i)
		msg.Candidates[i] = &grebev1.Item{Tokens: s.items[j], Identifier: &identifier}
	}
	return &request{r.At, msg}
}
