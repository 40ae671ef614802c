package hub

import (
	"bytes"
	_ "embed"
	"net/http"
	"sync"

	"github.com/myriad-go/myriad/internal/page"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

var renderPage = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	if err := (page.Application{Title: "Hub", Body: pageHTML, Style: pageCSS, Script: pageJS}).WriteHTML(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
})

func servePage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(renderPage())
}
