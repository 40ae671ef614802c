package agents

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// DefaultURL is the URL of a coordinator's NATS server on this machine, and DefaultListen its address.
	DefaultURL    = "nats://127.0.0.1:4222"
	DefaultListen = "127.0.0.1:4222"
	// DefaultSilence is the time without a message after which a peer is considered lost.
	DefaultSilence         = 5 * time.Second
	minSilence, maxSilence = 100 * time.Millisecond, time.Minute

	heartbeats = 5    // heartbeats per Silence
	maxQueued  = 1024 // maximum number of received messages that wait to be processed

	reconnectEvery = 500 * time.Millisecond
	writeTimeout   = 2 * time.Second
	pingEvery      = 2 * time.Second
	maxPings       = 2
)

// NATS describes a NATS server and how to authenticate to it.
type NATS struct {
	// URL lists the server's addresses, separated by commas. A user and password in it take precedence over Token.
	URL string
	// Creds is the path of a NATS credentials file, or "".
	Creds string
	// Token is the token for the NATS server, or "" for none. If the coordinator starts the server, the server requires
	// clients to present this token.
	Token string
	// TLS configures connections to tls:// URLs. If TLS is nil, the certificates that the system trusts are used.
	TLS *tls.Config

	dialer nats.CustomDialer // for tests
}

// RequireCredentialsUnlessLoopback returns an error if URL contains an address that is not a loopback address, and n
// has no credentials for this address.
func (n *NATS) RequireCredentialsUnlessLoopback() error {
	for text := range strings.SplitSeq(n.URL, ",") {
		u, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("cannot parse the NATS URL %s; expected a URL such as nats://host:4222, with special characters of user and password percent-encoded", RedactCredentialsInURLs(text))
		}
		if u.User == nil && n.Creds == "" && n.Token == "" && !isLoopbackAddr(net.JoinHostPort(u.Hostname(), "0")) {
			return fmt.Errorf("no credentials for NATS at %s, which is not on loopback; expected a secret (%s), a user and password in the URL, or a credentials file", RedactCredentialsInURLs(text), SecretVariable)
		}
	}
	return nil
}

// SecretVariable is the environment variable from which Myriad's commands read NATS.Token.
const SecretVariable = "MYRIAD_AGENTS_SECRET"

func requireServerAuthOrLoopback(conn *nats.Conn) error {
	if addr := conn.ConnectedAddr(); addr != "" && !conn.AuthRequired() && !isLoopbackAddr(addr) {
		return fmt.Errorf("agents: NATS at %s admits clients without credentials, and any of them could control agents; expected a server that requires a token, users or nkeys, or one on loopback", addr)
	}
	return nil
}

func isLoopbackAddr(addr string) bool {
	a, err := net.ResolveTCPAddr("tcp", addr)
	return err == nil && a.IP.IsLoopback()
}

// natsConnOptions returns the options of a NATS connection with the given name. If the connection breaks, the client
// tries to reconnect until it succeeds. Messages that are sent in the meantime are dropped.
func (n *NATS) natsConnOptions(name string) []nats.Option {
	all := []nats.Option{
		nats.Name(name), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectEvery), nats.ReconnectJitter(reconnectEvery, reconnectEvery),
		nats.FlusherTimeout(writeTimeout), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(maxPings),
		nats.IgnoreAuthErrorAbort(),
	}
	if n.Creds != "" {
		all = append(all, nats.UserCredentials(n.Creds))
	} else if n.Token != "" {
		all = append(all, nats.Token(n.Token))
	}
	if n.TLS != nil {
		all = append(all, nats.Secure(n.TLS))
	}
	if n.dialer != nil {
		all = append(all, nats.SetCustomDialer(n.dialer))
	}
	return all
}

func (n *NATS) explainNATSAuthError(err error) string {
	text := strings.TrimPrefix(err.Error(), "nats: ")
	if !errors.Is(err, nats.ErrAuthorization) {
		return text
	}
	switch {
	case n.Creds != "":
		return text + ": the server rejects the credentials in " + n.Creds
	case strings.Contains(n.URL, "@"):
		return text + ": the user or password in the URL is wrong"
	case n.Token != "":
		return text + ": wrong token; expected the secret of the coordinator, or the token of the NATS server"
	}
	return text + ": no credentials; expected the secret of the coordinator (" + SecretVariable + "), a user and password in the URL, or a credentials file"
}

// RedactCredentialsInURLs replaces the users and passwords in a comma-separated list of URLs with "…".
func RedactCredentialsInURLs(urls string) string {
	var shown []string
	for u := range strings.SplitSeq(urls, ",") {
		if scheme, rest, ok := strings.Cut(u, "://"); ok {
			if at := strings.LastIndexByte(rest, '@'); at >= 0 {
				u = scheme + "://…" + rest[at:]
			}
		}
		shown = append(shown, u)
	}
	return strings.Join(shown, ",")
}

func publishIfNotTooLarge(c *nats.Conn, subject string, data []byte) error {
	if limit := min(c.MaxPayload(), maxMessage); c.IsConnected() && int64(len(data)) > limit {
		return fmt.Errorf("agents: message has %d bytes; expected at most %d, the server's max_payload", len(data), limit)
	}
	return c.Publish(subject, data)
}
