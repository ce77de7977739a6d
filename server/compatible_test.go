package server

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

type usageBody struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Cached     int `json:"cached_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type scoreBody struct {
	Object string      `json:"object"`
	Model  string      `json:"model"`
	Scores [][]float64 `json:"scores"`
	Usage  usageBody   `json:"usage"`
}

func TestScore(t *testing.T) {
	w := newWorld(t)
	query, items := text("is it? "), [][]int32{text("one"), {5, 6, 7}, {}}
	labels := []int32{9, 300, 9}
	for _, softmaxed := range []bool{true, false} {
		for _, itemFirst := range []bool{true, false} {
			rec := w.ask("POST", "/v1/score", fmt.Sprintf(
				`{"model":"default-model","model":"id","query":"is it? ","items":["one",[5,6,7],""],`+
					`"label_token_ids":[9,300,9],"apply_softmax":%v,"item_first":%v,"user":"x"}`,
				softmaxed, itemFirst))
			if rec.Code != 200 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
			var got scoreBody
			decodeJSON(t, rec.Body, &got)
			if got.Object != "scoring" || got.Model != "id" || len(got.Scores) != len(items) || got.Usage.Prompt == 0 ||
				got.Usage.Total != got.Usage.Prompt {
				t.Fatalf("%+v", got)
			}
			for i, it := range items {
				all := slices.Concat(preamble, query, it, instruction)
				if itemFirst {
					all = slices.Concat(preamble, it, query, instruction)
				}
				checkScores(t, got.Scores[i], labels, all, softmaxed)
			}
		}
	}
}

// checkScores compares scores with the definition: exp of the log-probability, over the labels or the whole
// vocabulary.
func checkScores(t *testing.T, got []float64, labels, seen []int32, softmaxed bool) {
	t.Helper()
	over := labels
	if !softmaxed {
		over = make([]int32, vocab)
		for i := range over {
			over[i] = int32(i)
		}
	}
	sum := 0.0
	for _, id := range over {
		sum += math.Exp(float64(logit(id, seen)))
	}
	for i, id := range labels {
		if want := math.Exp(float64(logit(id, seen))) / sum; math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("label %d: %v, want %v", id, got[i], want)
		}
	}
}

func TestScoreWithoutInstruction(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Models[0].Prompt = bareBuilder(t) })
	// The query's last token answers for an empty item.
	rec := w.ask("POST", "/v1/score",
		`{"model":"id","query":[1,2],"items":[[3],[]],"label_token_ids":[9,10],"apply_softmax":true}`)
	var got scoreBody
	decodeJSON(t, rec.Body, &got)
	checkScores(t, got.Scores[0], []int32{9, 10}, []int32{1, 2, 3}, true)
	checkScores(t, got.Scores[1], []int32{9, 10}, []int32{1, 2}, true)
	rec = w.ask("POST", "/v1/score",
		`{"model":"id","query":[],"items":[[3],[]],"label_token_ids":[9,10],"apply_softmax":true}`)
	wantError(t, rec, 400, "invalid_argument", "items[1]")
	rec = w.ask("POST", "/v1/score",
		`{"model":"id","query":"","items":[[3],""],"label_token_ids":[9,10],"item_first":true}`)
	wantError(t, rec, 400, "invalid_argument", "items[1]")
}

func TestScoreErrors(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		body   string
		status int
		code   string
		field  string
	}{
		{`{"model":"id","items":["a"],"label_token_ids":[1]}`, 400, "invalid_argument", "query"},
		{`{"model":"id","query":"q","label_token_ids":[1]}`, 400, "invalid_argument", "items"},
		{`{"model":"id","query":"q","items":[],"label_token_ids":[1]}`, 400, "invalid_argument", "items"},
		{`{"model":"id","query":"q","items":["a"]}`, 400, "invalid_argument", "label_token_ids"},
		{`{"model":"id","query":"q","items":["a"],"label_token_ids":[1,400]}`, 400, "invalid_argument", "label_token_ids[1]"},
		{`{"model":"id","query":[400],"items":["a"],"label_token_ids":[1]}`, 400, "invalid_argument", "query[0]"},
		{`{"model":"id","query":"q","items":["a",[1,400]],"label_token_ids":[1]}`, 400, "invalid_argument", "items[1][1]"},
		{`{"model":"id","query":"q","items":[["a"]],"label_token_ids":[1]}`, 400, "invalid_argument", "items[0][0]"},
		{`{"model":"raw","query":"q","items":[[1]],"label_token_ids":[1]}`, 422, "unprocessable", "query"},
		{`{"model":"gpt","query":"q","items":["a"],"label_token_ids":[1]}`, 404, "not_found", "model"},
	} {
		wantError(t, w.ask("POST", "/v1/score", c.body), c.status, c.code, c.field)
	}
	big := newWorld(t, func(c *setup) { c.Models[0].Vocab = 200000 })
	items := strings.Repeat(`[1],`, 9999) + `[1]`
	rec := big.ask("POST", "/v1/score", `{"model":"id","query":[1],"items":[`+items+`],"label_token_ids":[1]}`)
	wantError(t, rec, 413, "too_large", "items")
}

type rerankBody struct {
	Object  string `json:"object"`
	ID      string `json:"id"`
	Model   string `json:"model"`
	Results []struct {
		Index    int     `json:"index"`
		Score    float64 `json:"relevance_score"`
		Document *struct {
			Text string `json:"text"`
		} `json:"document"`
	} `json:"results"`
	Usage usageBody `json:"usage"`
}

func TestRerank(t *testing.T) {
	w := newWorld(t)
	docs := []string{"red", "green", "blue", "red"}
	for _, c := range []struct {
		options string
		n       int
		docs    bool
	}{
		{``, 4, true},
		{`,"top_n":2`, 2, true},
		{`,"top_n":null,"return_documents":false,"truncation":true`, 4, false},
	} {
		rec := w.ask("POST", "/v1/rerank",
			`{"model":"pw","query":"colour","documents":["red",{"text":"green","id":1},"blue","red"]`+c.options+`}`)
		if rec.Code != 200 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		var got rerankBody
		decodeJSON(t, rec.Body, &got)
		if len(got.Results) != c.n || got.Object != "list" || got.ID == "" || got.Model != "pw" || got.Usage.Total == 0 {
			t.Fatalf("%+v", got)
		}
		for k, r := range got.Results {
			seen := slices.Concat(preamble, text("colour"), text(docs[r.Index]), instruction)
			want := naiveSoftmax([]float32{logit(yes, seen), logit(no, seen)})[0]
			if math.Abs(r.Score-want) > 1e-9 {
				t.Errorf("document %d: %v, want %v", r.Index, r.Score, want)
			}
			if k > 0 {
				before := got.Results[k-1]
				if before.Score < r.Score || before.Score == r.Score && before.Index > r.Index {
					t.Errorf("%+v stands before %+v", before, r)
				}
			}
			if (r.Document != nil) != c.docs || r.Document != nil && r.Document.Text != docs[r.Index] {
				t.Errorf("document of %+v", r)
			}
		}
	}
}

func TestRerankErrors(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		body   string
		status int
		code   string
		field  string
	}{
		{`{"model":"id","query":"q","documents":["a"]}`, 422, "unprocessable", "model"},
		{`{"model":"pw","documents":["a"]}`, 400, "invalid_argument", "query"},
		{`{"model":"pw","query":"q"}`, 400, "invalid_argument", "documents"},
		{`{"model":"pw","query":"q","documents":["a",""]}`, 400, "invalid_argument", "documents[1]"},
		{`{"model":"pw","query":"q","documents":["a",{"title":"b"}]}`, 400, "invalid_argument", "documents[1]"},
		{`{"model":"pw","query":"q","documents":["a"],"top_n":-1}`, 400, "invalid_argument", "top_n"},
	} {
		wantError(t, w.ask("POST", "/v1/rerank", c.body), c.status, c.code, c.field)
	}
}

func TestDefaultModelName(t *testing.T) {
	w := newWorld(t, func(c *setup) { c.Models = c.Models[:1] })
	rec := w.ask("POST", "/v1/score",
		`{"model":"default","query":"q","items":"a","label_token_ids":[1],"apply_softmax":true}`)
	if rec.Code != 200 {
		t.Errorf("SGLang's default model name: %d %s", rec.Code, rec.Body)
	}
}
