package openapi

// parameters describe the parameters of queries.
var parameters = map[string]string{
	"prefix": "Ids that begin with it.",
	"limit":  "The most ids, 1 to 1000; 20.",
	"random": "Any ids instead of the first ones; it has no value.",
	"q":      "Items whose text has these words. Not together with prefix or random.",
	"import": "Name of an import. All requests with it make one version of the catalog.",
	"end":    "On the last request of an import; it has no value.",
	"model":  "Name of a model; all when absent.",
	"key":    "Key of a row; may be repeated.",
	"op":     "rank or recommend.",
	"id":     "Of the batch, 16 to 64 letters and digits, to repeat the call safely; drawn when absent.",
}

// example is a call that works against the models of grebe demo.
type example struct {
	id    string // in the path
	query string
	body  string
	first string // command that the call needs before it
	flags string // of curl, beside those that the method needs
}

// examples are the calls of the reference, by operation. They run in the order of the page.
var examples = map[string]example{
	"rank": {body: `{"model": "shop", "user": {"id": "kaya"}, "candidates": [{"id": "i00040"}, {"id": "i02500"}]}`},
	"recommend": {
		body: `{"model": "shop", "user": {"id": "kaya"}, "n": 5, "filter": {"department": ["Camping"]}}`},
	"score": {body: `{"model": "shop", "query": "A camper.", "items": ["A tent"], "label_token_ids": [2628, 2629]}`},
	"score_pairs": {
		body: `{"model": "shop-pointwise", "text_1": "A camper.", "text_2": ["A tent", "A kettle"]}`},
	"rerank": {
		body: `{"model": "shop-pointwise", "query": "A camper.", "documents": ["A tent", "A kettle"], "top_n": 1}`},
	"rerank_texts": {body: `{"query": "A camper.", "texts": ["A tent", "A kettle"], "return_text": true}`},
	"rerank_v2": {
		body: `{"model": "shop-pointwise", "query": "A camper.", "documents": ["A tent", "A kettle"], "top_n": 1}`},
	"complete": {body: `{"model": "shop", "prompt": "A camper.", "n": 3}`},
	"chat":     {body: `{"model": "shop", "messages": [{"role": "user", "content": "A camper."}], "n": 3}`},

	"create_batch": {query: "op=recommend&id=weekly0000000001",
		body: `{"model": "shop", "user": {"id": "kaya"}, "n": 5}`},
	"get_batch":    {id: "weekly0000000001"},
	"get_results":  {id: "weekly0000000001", flags: "--retry 60 --retry-delay 1 --retry-all-errors"},
	"cancel_batch": {id: "weekly0000000001"},

	"list_items":  {query: "q=tent&limit=2"},
	"get_item":    {id: "i00040"},
	"put_item":    {id: "i1", body: `{"text": "Field guide to water birds", "attributes": {"department": ["Books"]}}`},
	"delete_item": {id: "i1"},
	"put_items":   {body: `{"id": "i1", "text": "Field guide to water birds"}`},
	"check_items": {body: `{"delete": "i1"}`},
	"index_items": {query: "model=shop"},

	"list_users":          {query: "prefix=k&limit=2"},
	"get_user":            {id: "kaya"},
	"put_user":            {id: "u1", body: `{"history": ["i00040"]}`},
	"delete_user":         {id: "u1"},
	"put_users":           {body: `{"id": "u1", "history": ["i00040"]}`},
	"check_users":         {body: `{"delete": "u1"}`},
	"append_events":       {id: "kaya", body: `{"events": [{"item": "i00040", "time": 1783000000, "action": 5}]}`},
	"append_events_batch": {body: `{"user": "kaya", "item": "i02500", "time": 1783000060, "id": "order-17"}`},
	"check_events":        {body: `{"user": "kaya", "item": "i02500", "time": 1783000120}`},
	"activate_catalog":    {body: `{"version": "auto"}`},
	"rollback_catalog":    {body: `{"model": "shop"}`},

	"put_rows": {id: "items", body: `{"key": 17, "row": [0.5, 1]}`},
	"get_rows": {id: "items", query: "key=17&key=18"},

	"get_model": {id: "shop"},
	"reload_model": {id: "shop", body: `{"wait": true}`,
		first: `sed -i 's/The customer takes:/The customer picks:/' ./shop/grebe.yaml`},
	"rollback_model": {id: "shop", body: `{"wait": true}`},

	"get_backup":    {flags: "-o grebe.backup"},
	"drain_node":    {id: "n1"},
	"undrain_node":  {id: "n1"},
	"leave_cluster": {id: "n1"},
}
