package secure

import (
	"bytes"
	"crypto/fips140"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"unsafe"

	"github.com/myriad-go/myriad/internal/secure/tls13"
)

// After a handshake, package tls13 can take over the records of most sessions, which saves 5 KB for each. It needs the
// traffic secrets. crypto/tls writes them to Config.KeyLogWriter, so each handshake has a configuration with a writer
// of its own.

// maxServerName is the maximum length of a server name, as in DNS (RFC 1035).
const maxServerName = 255

// EnableTakeover prepares the configuration of a TLS server for Session.TakeOver. It changes cfg, so nothing else may
// use cfg yet. The callbacks and the KeyLogWriter that are set in cfg still work. A handshake with a server name of
// more than 255 bytes fails.
func EnableTakeover(cfg *tls.Config) {
	getConfig := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.ServerName) > maxServerName {
			return nil, fmt.Errorf("secure: the server name has %d bytes; expected at most %d", len(hello.ServerName), maxServerName)
		}
		own := cfg
		if getConfig != nil {
			switch other, err := getConfig(hello); {
			case err != nil:
				return nil, err
			case other != nil:
				own = other
			}
		}
		t, ok := hello.Conn.(*transport)
		if !ok {
			return own, nil
		}
		return withSecretsWriter(own, t.hs.Load()), nil
	}
}

func withSecretsWriter(cfg *tls.Config, h *handshake) *tls.Config {
	cfg = cfg.Clone()
	h.secrets = &trafficSecrets{next: cfg.KeyLogWriter, onlyFullRecords: cfg.DynamicRecordSizingDisabled}
	cfg.KeyLogWriter = h.secrets
	return cfg
}

// trafficSecrets is the Config.KeyLogWriter of one TLS 1.3 connection. crypto/tls writes the traffic secrets of the
// connection to this writer.
type trafficSecrets struct {
	client, server  []byte
	sentRecords     int       // number of records that a server has encrypted with its secret
	next            io.Writer // the KeyLogWriter that the user has set; may be nil
	onlyFullRecords bool      // tls.Config.DynamicRecordSizingDisabled
}

func (s *trafficSecrets) Write(line []byte) (int, error) {
	fields := bytes.Fields(line) // label, client random, secret
	if len(fields) == 3 {
		switch string(fields[0]) {
		case "CLIENT_TRAFFIC_SECRET_0":
			s.client, _ = hex.AppendDecode(nil, fields[2])
		case "SERVER_TRAFFIC_SECRET_0":
			s.server, _ = hex.AppendDecode(nil, fields[2])
		}
	}
	if s.next != nil {
		return s.next.Write(line)
	}
	return len(line), nil
}

// countServerEncryptedRecords counts the records in p that are encrypted with the server's traffic secret, and adds the
// number to sentRecords. p is output of a server.
func (s *trafficSecrets) countServerEncryptedRecords(p []byte) {
	if fips140.Enabled() {
		return // StayFIPS
	}
	switch len(s.server) {
	case 32: // see tls13.NewConn
		s.sentRecords += tls13.CountRecordsEncryptedWith(tls.TLS_AES_128_GCM_SHA256, s.server, p, s.sentRecords)
	case 48:
		s.sentRecords += tls13.CountRecordsEncryptedWith(tls.TLS_AES_256_GCM_SHA384, s.server, p, s.sentRecords)
	}
}

func (s *trafficSecrets) erase() {
	clear(s.client)
	clear(s.server)
}

// StayReason is a reason why TakeOver leaves a session with crypto/tls.
type StayReason uint8

const (
	StayNone         StayReason = iota // the session does not stay
	StayDisabled                       // takeover is disabled
	StayVersion                        // the version is not TLS 1.3
	StayCipherSuite                    // the cipher suite does not use AES-GCM
	StayFIPS                           // in FIPS 140 mode, only crypto/tls may choose the nonces
	StaySessionCache                   // a client's crypto/tls stores session tickets
	NumStayReasons
)

// TakeOver moves an open session from crypto/tls to package tls13. If reason is StayNone, the move has succeeded: conn
// continues the connection, unread is ciphertext that has arrived but is not decrypted yet, and the session must not be
// used any more. With any other reason, the session continues with crypto/tls.
func (s *Session) TakeOver(cache *tls13.CipherCache) (conn tls13.Conn, unread []byte, reason StayReason) {
	secrets := s.secrets
	s.secrets = nil
	state := s.tls.ConnectionState()
	switch {
	case s.stayInSessionCache:
		return conn, nil, StaySessionCache
	case secrets == nil:
		return conn, nil, StayDisabled
	}
	defer secrets.erase()
	switch {
	case exporterFieldOrNil(&state) == nil:
		return conn, nil, StayDisabled
	case state.Version != tls.VersionTLS13:
		return conn, nil, StayVersion
	case fips140.Enabled():
		return conn, nil, StayFIPS
	case !tls13.IsSupported(state.CipherSuite):
		return conn, nil, StayCipherSuite
	}
	read, write, sent := secrets.client, secrets.server, secrets.sentRecords
	if s.isClient {
		read, write, sent = write, read, 0
	}
	conn, err := tls13.NewConn(state.CipherSuite, s.isClient, read, write, sent, cache)
	if err != nil { // a secret is missing
		return conn, nil, StayDisabled
	}
	if secrets.onlyFullRecords {
		conn.DisableSmallRecords()
	}
	unread, s.partial = s.partial, nil
	s.isOpen, s.tls = false, nil
	return conn, unread, StayNone
}

// Exporter exports keying material (RFC 5705).
type Exporter func(label string, context []byte, length int) ([]byte, error)

func exporterFieldOrNil(state *tls.ConnectionState) *Exporter {
	f := reflect.ValueOf(state).Elem().FieldByName("ekm")
	if !f.IsValid() || !f.Type().ConvertibleTo(reflect.TypeFor[Exporter]()) {
		return nil
	}
	return (*Exporter)(unsafe.Pointer(f.UnsafeAddr()))
}

// ExporterOf returns the exporter of keying material that state contains. Call it only after a successful
// Session.TakeOver, because it panics if the exporter is not available.
func ExporterOf(state *tls.ConnectionState) Exporter { return *exporterFieldOrNil(state) }

// SetExporter stores an exporter of keying material in state. Call it only after a successful Session.TakeOver.
func SetExporter(state *tls.ConnectionState, exporter Exporter) {
	*exporterFieldOrNil(state) = exporter
}
