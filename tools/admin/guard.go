package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/myriad-go/myriad/internal/lograte"
)

// This file is whose requests are served. Any web page can have a browser on this
// machine send requests here, without being able to read the answers; what it could do
// with them is make the server work. So two things hold for every path:
//
// What another site has caused, as the browser says in Sec-Fetch-Site or Origin, is
// refused, but for /healthz: the rule is that of http.CrossOriginProtection, for GET as
// well. Programs send neither header, and pass.
//
// Browsers send Sec-Fetch-Site only over TLS and to loopback, and no Origin with a GET
// for an image: beyond loopback another site's GET looks like any other. So what is
// dear a browser, known by its User-Agent at the least, gets by POST only, which never
// comes without one of the two. go tool pprof, curl and other programs may GET it.

// healthPath is where every site may ask.
const healthPath = "/healthz"

// rejectCrossSite refuses what another site has a browser ask for.
func rejectCrossSite(next http.Handler, rejectionLog *rejectionLogger) http.Handler {
	var origin http.CrossOriginProtection
	origin.AddInsecureBypassPattern(healthPath)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := *r
		asked.Method = http.MethodPost // it has no objection to GET
		if err := origin.Check(&asked); err != nil {
			rejectionLog.logRejection(r, err.Error())
			writeText(w, http.StatusForbidden, err.Error()+"; expected a request of this server's own pages or of a program: enter the address by hand")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// requirePOST refuses a browser's GET.
func requirePOST(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isBrowser(r) {
			writeText(w, http.StatusForbidden, "this takes much work, and a browser asks; expected POST, as the buttons of /debug/pprof/ send it")
			return
		}
		next.ServeHTTP(w, r)
	}
}

// isBrowser says whether a browser has sent a request. All of the last decades begin
// their User-Agent so, and no page can have them send another one unasked.
func isBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

// rejectionLogger logs what is refused, at most once a lograte.Interval.
type rejectionLogger struct{ log *slog.Logger }

func newRejectionLogger(log *slog.Logger) *rejectionLogger {
	return &rejectionLogger{slog.New(lograte.NewHandler(log.Handler()))}
}

func (l *rejectionLogger) logRejection(r *http.Request, reason string) {
	l.log.Warn("admin: a request is refused", "path", fmt.Sprintf("%.100s", r.URL.Path), "from", r.RemoteAddr, "because", reason)
}
