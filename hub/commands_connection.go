package hub

import "errors"

// version is that of the Redis whose commands these are. Clients choose by it what they send.
const version = "7.0.15"

const syntaxError = "ERR syntax error"

var errForeign = errors.New("hub: HTTP, in the middle of the Redis protocol")

// ping answers a subscriber of version 2 in the form of a message.
func (t *turn) ping() {
	if len(t.args) > 2 {
		t.error(wrongNumber(t.command.name))
		return
	}
	var text []byte
	if len(t.args) == 2 {
		text = t.args[1]
	}
	switch {
	case !t.resp3 && t.count() > 0:
		t.array(2)
		t.bulk("pong")
		t.bulkBytes(text)
	case len(t.args) == 2:
		t.bulkBytes(text)
	default:
		t.status("PONG")
	}
}

func (t *turn) echo() { t.bulkBytes(t.args[1]) }

func (t *turn) quit() {
	t.ok()
	if t.muted {
		t.out = t.out[:0]
	}
	t.close(nil)
}

// foreign closes a connection that sends HTTP behind its first bytes: a web page may have had a
// browser send it, with commands in it.
func (t *turn) foreign() { t.close(errForeign) }

// reset is as if the connection had just begun.
func (t *turn) reset() {
	t.h.closed(&t.client, t.ref)
	t.setVersion(2)
	t.detail(false, func(d *details) { d.name = "" })
	t.flags &^= silent | skips
	t.setUser(t.h.arrival(t.c.TLS()))
	t.muted = false
	t.status("RESET")
}

func (t *turn) setVersion(v int) {
	t.format, t.resp3 = resp2, v == 3
	if t.resp3 {
		t.format = resp3
	}
}

func (t *turn) selectDB() {
	switch n, ok := decimal(t.args[1]); {
	case !ok:
		t.error("ERR value is not an integer or out of range")
	case n != 0:
		t.error("ERR DB index is out of range")
	default:
		t.ok()
	}
}

// setUser has the client be a user, or, with nil, one that has a time to say who it is.
func (t *turn) setUser(u *user) {
	if before := t.user; (before == nil) != (u == nil) {
		d := strangerTime
		if u != nil {
			d = 0
		}
		t.c.SetDeadline(d)
	}
	t.user = u
}

// credential is what a client says who it is with: a password alone, which may be a token, or
// with a name.
func (t *turn) credential(given [][]byte) (ok bool) {
	var who *user
	var err error
	if len(given) == 1 {
		who, err = t.h.token(string(given[0]))
	} else {
		who, err = t.h.login(string(given[0]), string(given[1]))
	}
	switch {
	case err == nil:
		t.setUser(who)
		t.mistakes = 0
		return true
	case len(given) == 1 && t.h.newcomer() != nil:
		t.error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	default:
		t.error("WRONGPASS invalid username-password pair or user is disabled.")
	}
	t.failedLogin()
	return false
}

func (t *turn) auth() {
	switch {
	case len(t.args) > 3:
		t.error(syntaxError)
	case t.credential(t.args[1:]):
		t.ok()
	}
}

func (t *turn) whoami() { t.bulk(t.user.name) }

// hello is HELLO [version [AUTH name password] [SETNAME name]].
func (t *turn) hello() {
	v, given, name := 0, [][]byte(nil), []byte(nil)
	if len(t.args) > 1 {
		var ok bool
		if v, ok = decimal(t.args[1]); !ok {
			t.error("ERR Protocol version is not an integer or out of range")
			return
		}
		if v != 2 && v != 3 {
			t.error("NOPROTO unsupported protocol version")
			return
		}
	}
	for i := 2; i < len(t.args); i++ {
		switch left := len(t.args) - i - 1; {
		case is(t.args[i], "auth") && left >= 2:
			given = t.args[i+1 : i+3]
			i += 2
		case is(t.args[i], "setname") && left >= 1:
			if name = t.args[i+1]; !nameable(name) {
				t.error(badName)
				return
			}
			i++
		default:
			t.error("ERR Syntax error in HELLO option '" + shown(t.args[i]) + "'")
			return
		}
	}
	if given != nil && !t.credential(given) {
		return
	}
	switch {
	case t.user == nil:
		t.error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	case v == 2 && t.resp3 && t.count() > 0:
		t.error("ERR HELLO 2 is not possible while subscribed; UNSUBSCRIBE and PUNSUBSCRIBE come first")
		return
	}
	if v != 0 {
		t.setVersion(v)
	}
	if name != nil {
		t.setName(name)
	}
	t.helloReply()
}

func (t *turn) helloReply() {
	v := 2
	if t.resp3 {
		v = 3
	}
	t.dict(7)
	t.bulk("server")
	t.bulk("redis")
	t.bulk("version")
	t.bulk(version)
	t.bulk("proto")
	t.integer(v)
	t.bulk("id")
	t.integer(int(t.ref.ID()))
	t.bulk("mode")
	t.bulk("standalone")
	t.bulk("role")
	t.bulk("master")
	t.bulk("modules")
	t.array(0)
}

// badName answers names that are not nameable.
const badName = "ERR Client names cannot contain spaces, newlines or special characters."

// maxClientName is the most bytes of a client's name.
const maxClientName = 128

// nameable says whether a client may call itself so.
func nameable(name []byte) bool {
	for _, c := range name {
		if c < '!' || c > '~' {
			return false
		}
	}
	return len(name) <= maxClientName
}

// setName keeps a client's name, or forgets it.
func (t *turn) setName(name []byte) {
	t.detail(len(name) > 0, func(d *details) { d.name = string(name) })
}

// onOff says whether an argument is on or off, and answers an error otherwise.
func (t *turn) onOff() {
	if !is(t.args[2], "on") && !is(t.args[2], "off") {
		t.error(syntaxError)
		return
	}
	t.ok()
}
