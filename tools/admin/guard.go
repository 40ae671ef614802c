package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/myriad-go/myriad/internal/lograte"
)

// This file decides which requests are served. Any web page can make a browser on this
// machine send requests here. It can't read the answers, but it could make the server work.
// So two rules hold for every path:
//
// Requests caused by another site, according to Sec-Fetch-Site or Origin, are rejected
// except for /healthz: the rule of http.CrossOriginProtection, for GET as well. Programs
// send neither header and pass.
//
// Browsers send Sec-Fetch-Site only over TLS and to loopback, and no Origin with a GET for
// an image: beyond loopback another site's GET looks like any other. So browsers, which the
// User-Agent reveals, must use POST for expensive requests; a POST always has one of the two
// headers. go tool pprof, curl and other programs may use GET.

// healthPath is open to requests from every site.
const healthPath = "/healthz"

// rejectCrossSite rejects requests that another site makes a browser send.
func rejectCrossSite(next http.Handler, rejectionLog *rateLimitedRejectionLog) http.Handler {
	var origin http.CrossOriginProtection
	origin.AddInsecureBypassPattern(healthPath)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := *r
		asked.Method = http.MethodPost // Check allows every GET
		if err := origin.Check(&asked); err != nil {
			rejectionLog.logRejection(r, err.Error())
			replyText(w, http.StatusForbidden, err.Error()+"; expected a request from this server's own pages or from a program: enter the address by hand")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rejectBrowserGET rejects a browser's GET.
func rejectBrowserGET(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isBrowser(r) {
			replyText(w, http.StatusForbidden, "this request is expensive and comes from a browser; expected POST, as the buttons of /debug/pprof/ send it")
			return
		}
		next.ServeHTTP(w, r)
	}
}

// isBrowser reports whether a browser has sent a request. All browsers of recent decades use this
// User-Agent prefix, and no page can make them omit it.
func isBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

// rateLimitedRejectionLog logs rejected requests at most once per lograte.Interval.
type rateLimitedRejectionLog struct{ log *slog.Logger }

func newRateLimitedRejectionLog(log *slog.Logger) *rateLimitedRejectionLog {
	return &rateLimitedRejectionLog{slog.New(lograte.NewHandler(log.Handler()))}
}

func (l *rateLimitedRejectionLog) logRejection(r *http.Request, reason string) {
	l.log.Warn("admin: request rejected", "path", fmt.Sprintf("%.100s", r.URL.Path), "from", r.RemoteAddr, "because", reason)
}
