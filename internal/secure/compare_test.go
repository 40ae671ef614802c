package secure

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/secure/tls13"
)

// FuzzAgainstCryptoTLS makes a handshake and then sends the same records to the server's crypto/tls and to a tls13.Conn
// with the same secrets. The two must deliver the same plaintext, end in the same way and send the same records, except
// for the cases in differences. pieces determines the sizes in which the tls13.Conn receives the records.
func FuzzAgainstCryptoTLS(f *testing.F) {
	pieces := [][]byte{nil, {0}, {2, 30, 0, 100}}
	for i, script := range seedScripts() {
		f.Add(pieces[i%len(pieces)], script)
	}
	f.Fuzz(func(t *testing.T, pieces, script []byte) {
		reference, secrets := newReference(t)
		s := newScriptedStream(secrets.client, script)
		want := reference.run(t, s, secrets)
		got := runCompact(t, s, secrets, pieces)
		if got.isEqual(want) {
			return
		}
		byRecord := runCompact(t, s, secrets, nil) // the same, except that endedAt is known
		if !byRecord.isEqual(got) {
			t.Fatalf("in pieces: %v\nby record: %v", got, byRecord)
		}
		if problem := explainDifference(s, byRecord, want); problem != "" {
			t.Errorf("%s\ncrypto/tls: %v\ntls13:      %v\n%v", problem, want, byRecord, s)
		}
	})
}

// outcome is what one implementation has made of a stream.
type outcome struct {
	plaintext []byte
	sent      [][]byte // inner plaintexts, up to close_notify or an alert
	alert     int      // that it has found to be due because of a violation; -1 if none
	end       string   // "open", "failed" or the error
	endedAt   int      // number of the record in the stream, if the stream was passed by record; their count if open
}

func (o *outcome) isEqual(other *outcome) bool {
	return bytes.Equal(o.plaintext, other.plaintext) && slices.EqualFunc(o.sent, other.sent, bytes.Equal) &&
		o.alert == other.alert && o.end == other.end
}

func (o *outcome) String() string {
	return fmt.Sprintf("%s at record %d, alert %d, plaintext of %d bytes, sent %.40x", o.end, o.endedAt, o.alert, len(o.plaintext), o.sent)
}

// isPrefixOf reports whether other has delivered and sent the same and perhaps more, apart from the final alert of o.
func (o *outcome) isPrefixOf(other *outcome) bool {
	sent := o.sent
	if n := len(sent); n > 0 && isFatalAlert(sent[n-1]) {
		sent = sent[:n-1]
	}
	return bytes.HasPrefix(other.plaintext, o.plaintext) && len(sent) <= len(other.sent) &&
		slices.EqualFunc(sent, other.sent[:len(sent)], bytes.Equal)
}

func (o *outcome) setEnd(err error) {
	var opErr *net.OpError
	switch {
	case errors.Is(err, io.EOF), errors.As(err, &opErr) && opErr.Op == "remote error":
		o.end = err.Error()
	default:
		o.end = "failed"
	}
}

func (o *outcome) isOpen() bool { return o.end == "open" }

// canWrite reports whether the server may still write: a remote alert ends crypto/tls only for reading.
func (o *outcome) canWrite() bool { return o.isOpen() || o.end == io.EOF.Error() }

// setSent decrypts the records that the server has sent.
func (o *outcome) setSent(t *testing.T, records, secret []byte) {
	t.Helper()
	key := newTrafficKey(secret)
	for len(records) > 0 {
		record, rest := cutRecord(records)
		inner, err := key.open(record)
		if err != nil {
			t.Fatalf("the server's record %d: %v", len(o.sent), err)
		}
		o.sent, records = append(o.sent, inner), rest
		if bytes.Equal(inner, []byte{messageKeyUpdate, 0, 0, 1, 0, contentHandshake}) {
			key.update()
		}
	}
	o.alert = -1
	if n := len(o.sent); n > 0 && isFatalAlert(o.sent[n-1]) {
		o.alert = int(o.sent[n-1][1])
	}
	// crypto/tls sends alerts and answers KeyUpdate after close_notify, which only the write deadline prevents that it
	// sets for the net.Conn.
	if i := slices.IndexFunc(o.sent, isCloseNotify); i >= 0 {
		o.sent = o.sent[:i+1]
	}
}

func isFatalAlert(inner []byte) bool {
	return len(inner) == 3 && inner[0] == 2 && inner[2] == contentAlert
}

func isCloseNotify(inner []byte) bool { return bytes.Equal(inner, []byte{1, 0, contentAlert}) }

// reference is a crypto/tls server. During the handshake, its transport is a pipe; afterwards, the test provides input
// and takes output.
type reference struct {
	net.Conn
	tls           *tls.Conn
	isScripted    bool
	input, output []byte
}

func (r *reference) Read(p []byte) (int, error) {
	switch {
	case !r.isScripted:
		return r.Conn.Read(p)
	case len(r.input) == 0:
		return 0, ErrAgain
	}
	n := copy(p, r.input)
	r.input = r.input[n:]
	return n, nil
}

func (r *reference) Write(p []byte) (int, error) {
	if !r.isScripted {
		return r.Conn.Write(p)
	}
	r.output = append(r.output, p...)
	return len(p), nil
}

// newReference performs a handshake.
func newReference(t *testing.T) (*reference, *trafficSecrets) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	secrets := new(trafficSecrets)
	serverCfg.KeyLogWriter, serverCfg.SessionTicketsDisabled = secrets, true
	serverCfg.CurvePreferences = []tls.CurveID{tls.CurveP256} // the fastest
	clientCfg.CurvePreferences, clientCfg.InsecureSkipVerify = serverCfg.CurvePreferences, true
	serverPipe, clientPipe := net.Pipe()
	defer serverPipe.Close()
	defer clientPipe.Close()
	r := &reference{Conn: serverPipe}
	r.tls = tls.Server(r, serverCfg)
	done := make(chan error, 1)
	go func() { done <- tls.Client(clientPipe, clientCfg).Handshake() }()
	if err := errors.Join(r.tls.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	r.isScripted = true
	return r, secrets
}

// run passes the stream to crypto/tls, one record at a time.
func (r *reference) run(t *testing.T, s *scriptedStream, secrets *trafficSecrets) *outcome {
	o := &outcome{end: "open", endedAt: len(s.records)}
	buf := make([]byte, 16<<10)
	for i, record := range s.records {
		r.input = slices.Clone(s.bytes[record.start:record.end])
		for o.isOpen() {
			n, err := r.tls.Read(buf)
			o.plaintext = append(o.plaintext, buf[:n]...)
			if errors.Is(err, ErrAgain) {
				break
			} else if err != nil {
				o.setEnd(err)
				o.endedAt = i
			}
		}
		for _, e := range record.events {
			switch {
			case !o.canWrite():
			case e.isClose:
				_ = r.tls.CloseWrite()
			default:
				_, _ = r.tls.Write(make([]byte, e.write)) // fails after CloseWrite
			}
		}
	}
	o.setSent(t, r.output, secrets.server)
	if o.end == "failed" && o.alert < 0 {
		t.Fatalf("crypto/tls has failed without an alert: %v", o)
	}
	return o
}

type compactOutput []byte

func (o *compactOutput) AppendSpace(n int) []byte {
	*o = append(*o, make([]byte, n)...)
	return (*o)[len(*o)-n:]
}

var compareCache tls13.CipherCache

// runCompact passes the stream to a tls13.Conn, by record if pieces is nil.
func runCompact(t *testing.T, s *scriptedStream, secrets *trafficSecrets, pieces []byte) *outcome {
	conn, err := tls13.NewConn(tls.TLS_AES_128_GCM_SHA256, false, secrets.client, secrets.server, 0, &compareCache)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { conn.Close() }()
	o := &outcome{end: "open", endedAt: len(s.records)}
	var out compactOutput
	alert := -1
	read := func(p []byte) {
		p = slices.Clone(p) // Read decrypts in place
		for o.isOpen() {
			plaintext, used, err := conn.ReadInPlace(&out, p)
			o.plaintext = append(o.plaintext, plaintext...)
			p = p[used:]
			if errors.Is(err, tls13.ErrAgain) {
				break
			} else if err != nil {
				o.setEnd(err)
				if a := tls.AlertError(0); o.end == "failed" && errors.As(err, &a) {
					alert = int(a)
				}
			}
		}
	}
	waiting := 0 // start of what is to be passed with the next records
	piece := 0
	for i, record := range s.records {
		isLast := i == len(s.records)-1
		for waiting < record.end {
			n := record.end - waiting
			if len(pieces) > 0 {
				n = int(pieces[piece%len(pieces)])
				n = n*n + 1
			}
			if waiting+n > record.end && len(record.events) == 0 && !isLast {
				break // the piece extends into the next record
			}
			n = min(n, record.end-waiting)
			read(s.bytes[waiting : waiting+n])
			waiting += n
			piece++
		}
		if !o.isOpen() && o.endedAt == len(s.records) {
			o.endedAt = i
		}
		for _, e := range record.events {
			switch {
			case !o.canWrite():
			case e.isMove:
				if conn, err = tls13.RestoreConn(conn.AppendState(nil), &compareCache); err != nil {
					t.Fatal(err)
				}
			case e.isClose:
				_ = conn.CloseWrite(&out)
			default:
				_ = conn.Write(&out, make([]byte, e.write)) // fails after CloseWrite
			}
		}
	}
	o.setSent(t, out, secrets.server)
	if isClosed := slices.ContainsFunc(o.sent, isCloseNotify); o.alert != alert && !isClosed || isClosed && !isCloseNotify(o.sent[len(o.sent)-1]) {
		t.Fatalf("alert %d in the error, but sent %.40x", alert, o.sent)
	}
	o.alert = alert
	return o
}

// A difference is a case in which crypto/tls does not do what RFC 8446 requires, or does it later, or differs where
// the RFC leaves a choice.
type difference struct {
	name      string
	applies   func(p *position) bool
	alert     int                 // of tls13
	reference func(*outcome) bool // what crypto/tls may do
	sameText  bool                // crypto/tls delivers no more plaintext
}

func isAlert(alerts ...int) func(*outcome) bool {
	return func(o *outcome) bool { return slices.Contains(alerts, o.alert) }
}

// isAlertOrOpen allows the alerts of a message that has arrived completely, and waiting for the rest of it.
func isAlertOrOpen(alerts ...int) func(*outcome) bool {
	return func(o *outcome) bool { return o.isOpen() || slices.Contains(alerts, o.alert) }
}

func isAnything(*outcome) bool { return true }

func isFailureOrOpen(o *outcome) bool { return o.isOpen() || o.end == "failed" }

const (
	alertBadRecordMAC     = 20
	alertIllegalParameter = 47
	alertDecodeError      = 50
	alertInternalError    = 80
)

// The maximum numbers of records (tls13) and of messages (crypto/tls) without application data.
const (
	maxIdleRecords  = 32
	maxIdleMessages = 16
)

// differences applies at the record at which tls13 has failed. The first entry that applies counts.
var differences = []difference{
	{
		// Section 5: change_cipher_spec is unexpected after the handshake, and always if it is protected. crypto/tls
		// ignores it.
		name: "change_cipher_spec",
		applies: func(p *position) bool {
			return p.isChangeCipherSpec() && p.version == 0x0303 && string(p.content) == "\x01"
		},
		alert: alertUnexpectedMessage, reference: isAnything,
	}, {
		name:    "change_cipher_spec with another value",
		applies: func(p *position) bool { return p.isChangeCipherSpec() && p.version == 0x0303 },
		alert:   alertUnexpectedMessage, sameText: true, reference: isAlert(alertDecodeError),
	}, {
		// tls13 fails at the first byte. crypto/tls checks version, length, content and MAC before the type.
		name:    "outer type",
		applies: func(p *position) bool { return p.outerType != contentApplicationData },
		alert:   alertUnexpectedMessage, sameText: true,
		reference: isAlertOrOpen(alertProtocolVersion, alertRecordOverflow, alertBadRecordMAC),
	}, {
		// Section 5.4: an inner plaintext without a non-zero byte is unexpected_message. crypto/tls takes one of length
		// zero for an empty record.
		name:    "nothing inside",
		applies: func(p *position) bool { return p.inner != nil && len(p.inner) == 0 },
		alert:   alertUnexpectedMessage, reference: isAnything,
	}, {
		// Section 6: messages that cannot be parsed because of their length are decode_error.
		name: "length of alert",
		applies: func(p *position) bool {
			return p.contentType == contentAlert && len(p.content) != 2 && len(p.content) > 0
		},
		alert: alertDecodeError, sameText: true, reference: isAlert(alertUnexpectedMessage),
	}, {
		// crypto/tls counts messages, tls13 counts records.
		name:    "records of fragmented messages",
		applies: func(p *position) bool { return p.idleRecords > maxIdleRecords && p.idleMessages <= maxIdleMessages },
		alert:   alertUnexpectedMessage, reference: isAnything,
	}, {
		// If both are at their limit, crypto/tls parses a message before it counts it.
		name:    "message at the limit",
		applies: func(p *position) bool { return p.idleRecords > maxIdleRecords && p.contentType == contentHandshake },
		alert:   alertUnexpectedMessage, sameText: true, reference: isAlert(alertDecodeError, alertInternalError),
	}, {
		// Section 4.6.3: another value is illegal_parameter.
		name:    "value of KeyUpdate",
		applies: func(p *position) bool { return p.isKeyUpdate() && len(p.message) == 5 && p.message[4] > 1 },
		alert:   alertIllegalParameter, sameText: true, reference: isAlert(alertDecodeError),
	}, {
		// tls13 checks the position of a KeyUpdate before its value. crypto/tls answers a request first.
		name:    "KeyUpdate before the end of a record",
		applies: func(p *position) bool { return p.isKeyUpdate() && len(p.message) > 5 && p.message[4] > 0 },
		alert:   alertUnexpectedMessage, sameText: true, reference: isAlert(alertDecodeError, alertUnexpectedMessage),
	}, {
		// tls13 fails at the header of the message. crypto/tls waits for the rest, if the length is allowed at all, and
		// may find another violation in the records that follow.
		name: "length of KeyUpdate",
		applies: func(p *position) bool {
			return p.isKeyUpdateHeader() && !p.isMessageComplete() && p.messageLen() <= 65536
		},
		alert: alertDecodeError, sameText: true, reference: isFailureOrOpen,
	}, {
		name:    "length of KeyUpdate above 64 KiB",
		applies: func(p *position) bool { return p.isKeyUpdateHeader() && p.messageLen() > 65536 },
		alert:   alertDecodeError, sameText: true, reference: isAlert(alertInternalError),
	}, {
		// The same for messages of other types, of which tls13 looks only at the first byte.
		name:    "other message",
		applies: func(p *position) bool { return p.isOtherMessage() && !p.isMessageComplete() },
		alert:   alertUnexpectedMessage, sameText: true, reference: isFailureOrOpen,
	}, {
		// crypto/tls parses it first.
		name:    "other message that is malformed",
		applies: func(p *position) bool { return p.isOtherMessage() && p.isMessageComplete() },
		alert:   alertUnexpectedMessage, sameText: true, reference: isAlert(alertDecodeError),
	},
}

// explainDifference returns "" if there is a known reason for different outcomes.
func explainDifference(s *scriptedStream, got, want *outcome) string {
	if reason := s.whyEndedEarlier(got, want); reason != "" {
		if !want.isPrefixOf(got) {
			return "the difference is not only " + reason
		}
		return ""
	}
	if got.end != "failed" {
		return "no known difference"
	}
	p := s.positionAt(got.endedAt)
	for _, d := range differences {
		if !d.applies(p) {
			continue
		}
		switch {
		case got.alert != d.alert:
			return fmt.Sprintf("%s: alert %d, want %d", d.name, got.alert, d.alert)
		case !d.reference(want):
			return fmt.Sprintf("%s: crypto/tls ends otherwise", d.name)
		case !got.isPrefixOf(want) || d.sameText && len(got.plaintext) != len(want.plaintext):
			return fmt.Sprintf("%s: plaintext or output differ", d.name)
		}
		return ""
	}
	return "no known difference"
}

// The reasons of whyEndedEarlier.
const (
	versionOfRecord = "the version of a record"
	idleMessages    = "the number of messages without data"
)

// whyEndedEarlier returns the reason for which crypto/tls fails at a record that tls13 accepts, or "".
func (s *scriptedStream) whyEndedEarlier(got, want *outcome) string {
	if want.end != "failed" || want.endedAt > got.endedAt {
		return ""
	}
	p := s.positionAt(want.endedAt)
	switch {
	// Section 5.1: the version of a record is ignored. crypto/tls requires 0x0303.
	case want.alert == alertProtocolVersion && p.outerType == contentApplicationData && p.version != 0x0303:
		return versionOfRecord
	case want.alert == alertUnexpectedMessage && p.idleMessages == maxIdleMessages+1 && p.idleRecords <= maxIdleRecords:
		return idleMessages
	}
	return ""
}

// TestDifferencesAreReached checks that each entry of differences is needed for a seed.
func TestDifferencesAreReached(t *testing.T) {
	var missing []string
	used := make(map[string]bool)
	for _, script := range seedScripts() {
		reference, secrets := newReference(t)
		s := newScriptedStream(secrets.client, script)
		want, got := reference.run(t, s, secrets), runCompact(t, s, secrets, nil)
		if reason := s.whyEndedEarlier(got, want); reason != "" {
			used[reason] = true
		}
		if got.isEqual(want) || got.end != "failed" {
			continue
		}
		if i := slices.IndexFunc(differences, func(d difference) bool { return d.applies(s.positionAt(got.endedAt)) }); i >= 0 {
			used[differences[i].name] = true
		}
	}
	for _, reason := range []string{versionOfRecord, idleMessages} {
		if !used[reason] {
			missing = append(missing, reason)
		}
	}
	for _, d := range differences {
		if !used[d.name] {
			missing = append(missing, d.name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no seed for: %s", strings.Join(missing, "; "))
	}
}
