package app

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// NewWebHandler returns the app Web as a net/http handler. The handler serves the files in filesDir under /static/.
// NewWebHandler passes some of the handlers for single paths through the function wrapQuick: those that never block,
// compute only briefly and read no large body.
func NewWebHandler(filesDir string, wrapQuick func(http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, body := range map[string]func(r *http.Request) []byte{
		"/{$}":        func(*http.Request) []byte { return hello },
		"/pipeline":   func(*http.Request) []byte { return ok },
		"/baseline11": addNumbersInQueryAndBody,
		"/64k":        func(*http.Request) []byte { return Large },
	} {
		mux.Handle(path, wrapQuick(newBodyHandler("text/plain", body)))
	}
	mux.Handle("/json/", wrapQuick(newBodyHandler("application/json", func(r *http.Request) []byte {
		count, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/json/"))
		return MarshalFirstItems(count, queryIntOrZero(r.URL.RawQuery, "m"))
	})))
	mux.Handle("/upload", newBodyHandler("text/plain", func(r *http.Request) []byte {
		n, _ := io.Copy(io.Discard, r.Body) // an error ends the connection
		return strconv.AppendInt(nil, n, 10)
	}))
	mux.Handle("/wait", newBodyHandler("text/plain", func(*http.Request) []byte { return Wait2ms() }))
	mux.Handle("/compute", newBodyHandler("text/plain", func(*http.Request) []byte { return ComputeEvery1000thCall() }))
	mux.Handle("/static/", http.StripPrefix("/static/", http.FileServer(http.Dir(filesDir))))
	return mux
}

func newBodyHandler(contentType string, body func(r *http.Request) []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body(r)) // an error ends the connection
	})
}

func addNumbersInQueryAndBody(r *http.Request) []byte {
	sum := queryIntOrZero(r.URL.RawQuery, "a") + queryIntOrZero(r.URL.RawQuery, "b")
	if r.ContentLength != 0 {
		var text [20]byte
		n, _ := io.ReadFull(r.Body, text[:]) // an error means that the body is shorter
		added, _ := strconv.Atoi(string(text[:n]))
		sum += added
	}
	return strconv.AppendInt(nil, int64(sum), 10)
}

func queryIntOrZero(query, key string) (n int) {
	for pair := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(pair, "="); name == key {
			n, _ = strconv.Atoi(value)
		}
	}
	return n
}

var hello, ok = []byte(HelloText), []byte("ok")

// Large is the response body for the path /64k.
var Large = []byte(strings.Repeat("0123456789abcde\n", 4<<10))

// Wait2ms waits 2 ms, like a handler that queries a nearby database. It returns the response body.
func Wait2ms() []byte {
	time.Sleep(2 * time.Millisecond)
	return ok
}

var computeRequests atomic.Int64

// ComputeEvery1000thCall returns the response body. Every 1,000th call first computes for 1 ms. The other calls return
// immediately.
func ComputeEvery1000thCall() []byte {
	if computeRequests.Add(1)%1000 == 0 {
		var sum [sha256.Size]byte
		for range 10_000 {
			sum = sha256.Sum256(sum[:])
		}
	}
	return ok
}

type item struct {
	ID       int      `json:"id"`
	Name     string   `json:"name"`
	Category string   `json:"category"`
	Price    int      `json:"price"`
	Quantity int      `json:"quantity"`
	Active   bool     `json:"active"`
	Tags     []string `json:"tags"`
	Rating   struct {
		Score int `json:"score"`
		Count int `json:"count"`
	} `json:"rating"`
	Total int `json:"total"`
}

var items = func() (all [50]item) {
	for i := range all {
		x := &all[i]
		x.ID, x.Name, x.Category, x.Price, x.Quantity, x.Active = i+1, fmt.Sprintf("Item %d", i+1), "tools", 300+i, 15+i, i%3 > 0
		x.Tags, x.Rating.Score, x.Rating.Count = []string{"sale", "new", "popular"}, 40+i%10, 50+i
	}
	return all
}()

// MarshalFirstItems returns the first items of a fixed list of 50 items, as JSON. The total of an item is price times
// quantity times totalFactor. A totalFactor below 1 counts as 1.
func MarshalFirstItems(count, totalFactor int) []byte {
	reply := struct {
		Items []item `json:"items"`
		Count int    `json:"count"`
	}{append([]item{}, items[:min(max(count, 0), len(items))]...), count}
	for i := range reply.Items {
		reply.Items[i].Total = reply.Items[i].Price * reply.Items[i].Quantity * max(totalFactor, 1)
	}
	text, _ := json.Marshal(reply) // can't fail
	return text
}
