package hub

import "errors"

// redisVersion is the version of Redis that the hub reports.
const redisVersion = "7.0.15"

const syntaxErrorReply = "ERR syntax error"

var errUnexpectedHTTP = errors.New("hub: HTTP request on a Redis protocol connection")

func (b *commandBatch) handlePing() {
	if len(b.args) > 2 {
		b.writeError(wrongArgCountReply(b.command.name))
		return
	}
	var text []byte
	if len(b.args) == 2 {
		text = b.args[1]
	}
	switch {
	case !b.resp3 && b.subscriptionCount() > 0:
		b.writeArrayHeader(2)
		b.writeBulk("pong")
		b.writeBulkBytes(text)
	case len(b.args) == 2:
		b.writeBulkBytes(text)
	default:
		b.writeStatus("PONG")
	}
}

func (b *commandBatch) handleQuit() {
	b.writeOK()
	if b.noReply {
		b.buf = b.buf[:0]
	}
	b.flushAndClose(nil)
}

// closeUnexpectedHTTP closes a Redis connection because an HTTP request has arrived. For example, a malicious web page
// can make a browser send such a request, with Redis commands in the body.
func (b *commandBatch) closeUnexpectedHTTP() { b.flushAndClose(errUnexpectedHTTP) }

func (b *commandBatch) handleReset() {
	b.hub.unsubscribeAllAndStopReplay(&b.client, b.ref)
	b.setReplyProtocol(2)
	b.updateSessionDetails(false, func(d *sessionDetails) { d.clientName, d.unfinished = "", nil })
	b.replyFlags &^= repliesOff | skipNextReply
	b.setUserOrAuthDeadline(b.hub.initialUser(b.conn.TLS()))
	b.noReply = false
	b.writeStatus("RESET")
}

func (b *commandBatch) setReplyProtocol(version int) {
	b.format, b.resp3 = formatRESP2, version == 3
	if b.resp3 {
		b.format = formatRESP3
	}
}

func (b *commandBatch) handleSelectOnlyDB0() {
	switch n, ok := parseRedisInt(b.args[1]); {
	case !ok:
		b.writeError("ERR value is not an integer or out of range")
	case n != 0:
		b.writeError("ERR DB index is out of range")
	default:
		b.writeOK()
	}
}

// setUserOrAuthDeadline sets the client's user. If userOrNil is nil, the client must authenticate within authTimeout.
func (b *commandBatch) setUserOrAuthDeadline(userOrNil *user) {
	if previous := b.user; (previous == nil) != (userOrNil == nil) {
		timeout := authTimeout
		if userOrNil != nil {
			timeout = 0
		}
		b.conn.SetDeadline(timeout)
	}
	b.user = userOrNil
}

// authenticateOrReplyError logs the client in. credentials is a user name and a password, or only a password.
func (b *commandBatch) authenticateOrReplyError(credentials [][]byte) (ok bool) {
	var u *user
	var err error
	if len(credentials) == 1 {
		u, err = b.hub.authenticateToken(string(credentials[0]))
	} else {
		u, err = b.hub.authenticatePassword(string(credentials[0]), string(credentials[1]))
	}
	switch {
	case err == nil:
		b.setUserOrAuthDeadline(u)
		b.consecutiveErrors = 0
		return true
	case len(credentials) == 1 && b.hub.unauthenticatedUserOrNil() != nil:
		b.writeError("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	default:
		b.writeError("WRONGPASS invalid username-password pair or user is disabled.")
	}
	b.countFailedLoginCloseLaterIfMany()
	return false
}

func (b *commandBatch) handleAuth() {
	switch {
	case len(b.args) > 3:
		b.writeError(syntaxErrorReply)
	case b.authenticateOrReplyError(b.args[1:]):
		b.writeOK()
	}
}

// handleHello handles HELLO [version [AUTH name password] [SETNAME name]].
func (b *commandBatch) handleHello() {
	version, credentials, name := 0, [][]byte(nil), []byte(nil)
	if len(b.args) > 1 {
		var ok bool
		if version, ok = parseRedisInt(b.args[1]); !ok {
			b.writeError("ERR Protocol version is not an integer or out of range")
			return
		}
		if version != 2 && version != 3 {
			b.writeError("NOPROTO unsupported protocol version")
			return
		}
	}
	for i := 2; i < len(b.args); i++ {
		switch left := len(b.args) - i - 1; {
		case equalsFold(b.args[i], "auth") && left >= 2:
			credentials = b.args[i+1 : i+3]
			i += 2
		case equalsFold(b.args[i], "setname") && left >= 1:
			if name = b.args[i+1]; !isValidClientName(name) {
				b.writeError(badClientNameReply)
				return
			}
			i++
		default:
			b.writeError("ERR Syntax error in HELLO option '" + truncateForError(b.args[i]) + "'")
			return
		}
	}
	if credentials != nil && !b.authenticateOrReplyError(credentials) {
		return
	}
	switch {
	case b.user == nil:
		b.writeError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	case version == 2 && b.resp3 && b.subscriptionCount() > 0:
		b.writeError("ERR HELLO 2 is not possible while subscribed; unsubscribe first")
		return
	}
	if version != 0 {
		b.setReplyProtocol(version)
	}
	if name != nil {
		b.setClientName(name)
	}
	b.replyHello()
}

func (b *commandBatch) replyHello() {
	version := 2
	if b.resp3 {
		version = 3
	}
	b.writeMapHeader(7)
	b.writeBulksAndInts("server", "redis", "version", redisVersion, "proto", version, "id", int(b.ref.ID()),
		"mode", "standalone", "role", "master", "modules")
	b.writeArrayHeader(0)
}

const badClientNameReply = "ERR Client names cannot contain spaces, newlines or special characters."

const maxClientNameBytes = 128

func isValidClientName(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			return false
		}
	}
	return len(name) <= maxClientNameBytes
}

func (b *commandBatch) setClientName(name []byte) {
	b.updateSessionDetails(len(name) > 0, func(d *sessionDetails) { d.clientName = string(name) })
}

func (b *commandBatch) handleIgnoredOnOff() {
	if !equalsFold(b.args[2], "on") && !equalsFold(b.args[2], "off") {
		b.writeError(syntaxErrorReply)
		return
	}
	b.writeOK()
}
