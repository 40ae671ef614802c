package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/myriad-go/myriad/internal/lograte"
)

// Any web page can make a local browser send requests to this handler. The page cannot read the answers, but its
// requests could cost the server work. Two rules therefore apply to every path.
//
// First, requests caused by another site, according to Sec-Fetch-Site or Origin, are rejected except for /healthz. This
// is the rule of http.CrossOriginProtection, applied to GET as well. Requests of programs other than browsers have
// neither header, and pass.
//
// Second, browsers must use POST for expensive requests. The reason is that browsers send Sec-Fetch-Site only over TLS
// and to loopback, and no Origin with the GET for an image. On other addresses, a GET caused by another site therefore
// looks like any other GET. A POST always has one of the two headers. Browsers are recognized by the User-Agent. Other
// programs, such as go tool pprof and curl, may use GET.

// healthPath is the only path for which the handler accepts requests that a web page of another site has caused.
const healthPath = "/healthz"

// rejectCrossSite returns a handler that rejects requests that a web page of another site has caused in a browser. It
// passes all other requests, and all requests for healthPath, to next.
func rejectCrossSite(next http.Handler, rejectionLog *rateLimitedRejectionLog) http.Handler {
	var origin http.CrossOriginProtection
	origin.AddInsecureBypassPattern(healthPath)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := *r
		asked.Method = http.MethodPost // because Check allows every GET
		if err := origin.Check(&asked); err != nil {
			rejectionLog.logRejection(r, err.Error())
			replyText(w, http.StatusForbidden, err.Error()+"; expected a request from a page of this server or from a program; open the address directly")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func rejectBrowsers(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isBrowser(r) {
			replyText(w, http.StatusForbidden, "GET from a browser for an expensive page; expected POST, as sent by the buttons of /debug/pprof/")
			return
		}
		next.ServeHTTP(w, r)
	}
}

func isBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

type rateLimitedRejectionLog struct{ log *slog.Logger }

func newRateLimitedRejectionLog(log *slog.Logger) *rateLimitedRejectionLog {
	return &rateLimitedRejectionLog{slog.New(lograte.NewHandler(log.Handler()))}
}

func (l *rateLimitedRejectionLog) logRejection(r *http.Request, reason string) {
	l.log.Warn("admin: request rejected", "path", fmt.Sprintf("%.100s", r.URL.Path), "from", r.RemoteAddr, "because", reason)
}
