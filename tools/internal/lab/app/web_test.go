package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestWebHandler(t *testing.T) {
	dir, quick := t.TempDir(), 0
	testkit.RequireNoError(t, os.WriteFile(filepath.Join(dir, "page.css"), Large, 0o600))
	h := NewWebHandler(dir, func(h http.Handler) http.Handler { quick++; return h })
	for _, row := range []struct{ request, body, want string }{
		{"GET /", "", HelloText},
		{"GET /pipeline", "", "ok"},
		{"GET /baseline11?a=13&b=42", "", "55"},
		{"POST /baseline11?b=42&a=13", "20", "75"},
		{"GET /json/0", "", `{"items":[],"count":0}`},
		{"GET /json/1?m=2", "", `{"items":[{"id":1,"name":"Item 1","category":"tools","price":300,"quantity":15,"active":false,"tags":["sale","new","popular"],"rating":{"score":40,"count":50},"total":9000}],"count":1}`},
		{"GET /64k", "", string(Large)},
		{"POST /upload", strings.Repeat("x", 100_000), "100000"},
		{"GET /wait", "", "ok"},
		{"GET /compute", "", "ok"},
		{"GET /static/page.css", "", string(Large)},
	} {
		method, target, _ := strings.Cut(row.request, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(row.body)))
		if w.Code != http.StatusOK || w.Body.String() != row.want {
			t.Errorf("%s: %d %.200q, want %.200q", row.request, w.Code, w.Body, row.want)
		}
	}
	if quick != 5 {
		t.Errorf("%d handlers are quick, want 5", quick)
	}
}
