package rank

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/schedule"
	"grebe/serve"
)

// BeautyOptions say what Beauty compares. Zero values stand for defaults.
type BeautyOptions struct {
	Data string // folder with Beauty.txt and beauty_joined.tsv
	// Checkpoint is a folder with a model and its tokenizer.json. Without it the small random model is
	// asked, with Tokenizer's tokens modulo its vocabulary: texts keep their lengths and repeated words.
	Checkpoint string
	Tokenizer  string // tokenizer.json for the random model
	Dir        string // folder of the random model's checkpoint
	Users      int    // 50
	Candidates int    // 100: the user's next item and others drawn at random
	History    int    // last items of a history that are used; 20
	Format     string // bf16
	Threads    int
	JSON       bool
}

func (o *BeautyOptions) setDefaults() {
	for _, d := range []struct {
		value *int
		is    int
	}{{&o.Users, 50}, {&o.Candidates, 100}, {&o.History, 20}, {&o.Threads, runtime.GOMAXPROCS(0)}} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	if o.Format == "" {
		o.Format = "bf16"
	}
}

// ErrNoData says that the data of Beauty is not there.
var ErrNoData = errors.New("the Beauty data is not there")

// BeautyReport says how far the orders agree. Means over users.
type BeautyReport struct {
	Date       string      `json:"date"`
	Device     string      `json:"device"`
	Model      string      `json:"model"`
	Trained    bool        `json:"trained"` // a checkpoint was given
	Users      int         `json:"users"`
	Candidates int         `json:"candidates"`
	UserTokens float64     `json:"user_tokens"`
	ItemTokens float64     `json:"item_tokens"` // per item
	UserFirst  float64     `json:"auto_user_first"`
	Pairs      []Agreement `json:"agreement"`
	Recall     []Recall    `json:"recall"`
}

// Agreement compares two ways to rank the same candidates.
type Agreement struct {
	A    string  `json:"a"`
	B    string  `json:"b"`
	Tau  float64 `json:"kendall_tau"`
	Top  float64 `json:"top10_overlap"`
	Best float64 `json:"same_top1"`
}

// Recall is how often the user's real next item is among the first ten.
type Recall struct {
	Policy string  `json:"policy"`
	At10   float64 `json:"at_10"`
}

// Beauty ranks for users of Amazon Beauty in both orders and by auto, and writes how far they agree.
func Beauty(ctx context.Context, o BeautyOptions, w io.Writer) (*BeautyReport, error) {
	o.setDefaults()
	data, err := readBeauty(o.Data)
	if err != nil {
		return nil, fmt.Errorf("bench beauty: %w", err)
	}
	r, err := o.run(ctx, data)
	if err != nil {
		return r, fmt.Errorf("bench beauty: %w", err)
	}
	p := newPrinter(w, o.JSON)
	p.beauty(r)
	return r, p.finish(r)
}

// beautyData is titles by item and histories.
type beautyData struct {
	titles    map[int]string
	histories [][]int
}

func readBeauty(dir string) (*beautyData, error) {
	d := &beautyData{titles: map[int]string{}}
	err := eachLine(filepath.Join(dir, "beauty_joined.tsv"), func(line string) {
		if f := strings.Split(line, "\t"); len(f) > 2 {
			if id, err := strconv.Atoi(f[0]); err == nil {
				d.titles[id] = f[2]
			}
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachLine(filepath.Join(dir, "Beauty.txt"), func(line string) {
		var items []int
		for _, f := range strings.Fields(line)[1:] {
			if id, err := strconv.Atoi(f); err == nil && d.titles[id] != "" {
				items = append(items, id)
			}
		}
		if len(items) >= 2 {
			d.histories = append(d.histories, items)
		}
	})
	return d, err
}

func eachLine(path string, f func(string)) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNoData, err)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if s.Text() != "" {
			f(s.Text())
		}
	}
	return s.Err()
}

// open opens the model and the texts' way to tokens.
func (o *BeautyOptions) open() (*system, prompt.Tokenizer, error) {
	name := o.Tokenizer
	if o.Checkpoint != "" {
		name = filepath.Join(o.Checkpoint, "tokenizer.json")
	}
	tok, err := tokenizer.Load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoData, err)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.Checkpoint != "" {
		s, err := openDir(o.Checkpoint, filepath.Base(o.Checkpoint), o.Format, "cpu", o.Threads)
		return s, tok, err
	}
	s, err := open(&Options{Model: "small", Dir: o.Dir, Format: o.Format, Threads: o.Threads})
	if err != nil {
		return nil, nil, err
	}
	return s, folded{tok, int32(s.model.Vocab())}, nil
}

// folded is a tokenizer for a model of a smaller vocabulary: ids modulo its size.
type folded struct {
	*tokenizer.Tokenizer
	vocab int32
}

// AppendEncode folds the tokens of a text.
func (f folded) AppendEncode(dst []int32, text string) []int32 {
	n := len(dst)
	dst = f.Tokenizer.AppendEncode(dst, text)
	for i := n; i < len(dst); i++ {
		dst[i] %= f.vocab
	}
	return dst
}

// TokenID folds the id of a token.
func (f folded) TokenID(text string) (int32, bool) {
	id, ok := f.Tokenizer.TokenID(text)
	return id % f.vocab, ok
}

func (o *BeautyOptions) run(ctx context.Context, data *beautyData) (*BeautyReport, error) {
	sys, tok, err := o.open()
	if err != nil {
		return nil, err
	}
	defer sys.close()
	b, err := prompt.New(prompt.Config{
		LeadIn: prompt.Text{Text: "Candidates:\n"}, Instruction: prompt.Text{Text: "The next item is"},
		User: "The user bought, oldest first:\n{text}\n", Item: "{text}\n",
	}, tok, sys.model.Vocab())
	if err != nil {
		return nil, err
	}
	v, err := sys.newCached(ctx, b, schedule.Predicted, int64(sys.shape.ChunkBytes(1<<16, false)), nil)
	if err != nil {
		return nil, err
	}
	defer v.close()
	r := &BeautyReport{
		Date: time.Now().UTC().Format(time.DateOnly), Device: sys.device.Name(), Model: sys.describe(),
		Trained: o.Checkpoint != "",
		Users:   o.Users, Candidates: o.Candidates,
	}
	return r, r.measure(ctx, o, data, v.server)
}

// measure ranks for some users in each way and compares. Auto comes last, when both the user and the
// items are cached.
func (r *BeautyReport) measure(ctx context.Context, o *BeautyOptions, data *beautyData, s *serve.Service) error {
	random := rand.New(rand.NewPCG(5, 6))
	ways := []string{"user", "item", "auto"}
	recall := make([]int, len(ways))
	sums := map[[2]int]*Agreement{}
	for a := range ways {
		for b := a + 1; b < len(ways); b++ {
			sums[[2]int{a, b}] = &Agreement{A: ways[a], B: ways[b]}
		}
	}
	for range o.Users {
		req, truth := data.request(o, random)
		ranks := make([][]int, len(ways)) // candidates, best first
		for i, way := range ways {
			req.Prefix = way
			resp, err := s.Rank(ctx, req)
			if err != nil {
				return err
			}
			ranks[i] = order(resp)
			if slices.Contains(ranks[i][:min(10, len(ranks[i]))], truth) {
				recall[i]++
			}
			if way == "auto" && resp.Prefix == "user" {
				r.UserFirst += 1 / float64(o.Users)
			}
			if i == 0 {
				r.UserTokens += float64(resp.Usage.UserTokens) / float64(o.Users)
				r.ItemTokens += float64(resp.Usage.ItemTokens) / float64(o.Users*o.Candidates)
			}
		}
		for pair, sum := range sums {
			sum.add(ranks[pair[0]], ranks[pair[1]], float64(o.Users))
		}
	}
	for i, way := range ways {
		r.Recall = append(r.Recall, Recall{way, float64(recall[i]) / float64(o.Users)})
	}
	for _, s := range sums {
		r.Pairs = append(r.Pairs, *s)
	}
	slices.SortFunc(r.Pairs, func(a, b Agreement) int { return cmp.Or(-cmp.Compare(a.A, b.A), -cmp.Compare(a.B, b.B)) })
	return nil
}

// request draws a user, and returns which candidate the user's last item is.
func (d *beautyData) request(o *BeautyOptions, random *rand.Rand) (*grebev1.RankRequest, int) {
	user := random.IntN(len(d.histories))
	h := d.histories[user]
	past, next := h[:len(h)-1], h[len(h)-1]
	past = past[max(0, len(past)-o.History):]
	lines := make([]string, len(past))
	for i, id := range past {
		lines[i] = d.titles[id]
	}
	text := strings.Join(lines, "\n")
	req := &grebev1.RankRequest{User: &grebev1.User{Id: fmt.Sprint(user), Text: &text}, DeadlineMs: deadlineMs}
	ids := map[int]bool{next: true}
	candidates := []int{next}
	known := len(d.titles)
	for len(candidates) < min(o.Candidates, known) {
		if id := 1 + random.IntN(known); !ids[id] && d.titles[id] != "" {
			ids[id] = true
			candidates = append(candidates, id)
		}
	}
	random.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	for i, id := range candidates {
		title, identifier := d.titles[id], int32(i+100)
		req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprint(id), Text: &title, Identifier: &identifier})
	}
	return req, slices.Index(candidates, next)
}

func order(resp *grebev1.RankResponse) []int {
	out := make([]int, len(resp.Results))
	for i, x := range resp.Results {
		out[i] = int(x.Index)
	}
	return out
}

// add adds one user's share of the means.
func (a *Agreement) add(x, y []int, users float64) {
	a.Tau += kendall(x, y) / users
	top := min(10, len(x))
	same := 0
	for _, i := range x[:top] {
		if slices.Contains(y[:top], i) {
			same++
		}
	}
	a.Top += float64(same) / float64(top) / users
	if x[0] == y[0] {
		a.Best += 1 / users
	}
}

// kendall is Kendall's tau of two orders of the same things: 1 the same, 0 unrelated, −1 reversed.
func kendall(x, y []int) float64 {
	place := make([]int, len(y))
	for at, i := range y {
		place[i] = at
	}
	balance, pairs := 0, 0
	for a := range x {
		for b := a + 1; b < len(x); b++ {
			pairs++
			balance += cmp.Compare(place[x[b]], place[x[a]])
		}
	}
	if pairs == 0 {
		return 1
	}
	return float64(balance) / float64(pairs)
}

func (p *printer) beauty(r *BeautyReport) {
	p.printf("%s, %s\nmodel %s\n", r.Date, r.Device, r.Model)
	p.printf("Amazon Beauty: %d users, %d candidates each (the next item and others at random); %.0f tokens of history, "+
		"%.1f per title\n",
		r.Users, r.Candidates, r.UserTokens, r.ItemTokens)
	rows := [][]string{{"", "Kendall tau", "top 10 shared", "same first"}}
	for _, a := range r.Pairs {
		rows = append(rows, []string{a.A + " against " + a.B, fmt.Sprintf("%.3f", a.Tau), percent(a.Top), percent(a.Best)})
	}
	rows = append(rows, []string{"two random orders", "0.000", percent(10 / float64(max(r.Candidates, 10))),
		percent(1 / float64(r.Candidates))})
	p.table(rows)
	for _, x := range r.Recall {
		p.printf("%s: next item among the first ten for %s of the users\n", x.Policy, percent(x.At10))
	}
	p.printf("auto put the user first in %s of the requests\n", percent(r.UserFirst))
	if !r.Trained {
		p.printf(`
The weights are random: the scores mean nothing, and the recall is that of chance, which is %s. What this shows is that
both orders and auto rank the same prompts, that auto equals the order that it chose, and how much the order of a prompt
moves an untrained model's logits. Whether the orders agree on what users want takes trained weights (--checkpoint).
`, percent(10/float64(max(r.Candidates, 10))))
	}
}
