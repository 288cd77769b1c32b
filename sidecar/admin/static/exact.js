// JSON as it was sent. JSON.parse rounds large integers, turns 1.0 into 1 and moves keys that look
// like numbers to the front; whoever approves arguments must see the ones that will be sent.

/** A number, as it is written. */
export class Num {
  constructor(text) {
    this.text = text;
  }
}

/** Objects become Maps and numbers Num; the rest is as JSON.parse has it. Throws SyntaxError. */
export function exact(text) {
  let at = 0;

  const fail = () => {
    throw new SyntaxError(`not JSON at ${at}`);
  };
  const skip = () => {
    while (at < text.length && " \t\r\n".includes(text[at])) at += 1;
  };
  const eat = (what) => {
    skip();
    if (text[at] !== what) fail();
    at += 1;
  };
  const next = () => {
    skip();
    return text[at];
  };

  function string() {
    skip();
    if (text[at] !== '"') fail();
    let end = at + 1;
    for (;;) {
      end = text.indexOf('"', end);
      if (end < 0) fail();
      let slashes = 0;
      while (text[end - 1 - slashes] === "\\") slashes += 1;
      if (slashes % 2 === 0) break;
      end += 1;
    }
    const literal = text.slice(at, end + 1);
    at = end + 1;
    return JSON.parse(literal);
  }

  function list(close, item) {
    at += 1;
    if (next() === close) {
      at += 1;
      return;
    }
    for (;;) {
      item();
      if (next() === ",") at += 1;
      else break;
    }
    eat(close);
  }

  function value() {
    switch (next()) {
      case "{": {
        const map = new Map();
        list("}", () => {
          const key = string();
          eat(":");
          map.set(key, value());
        });
        return map;
      }
      case "[": {
        const items = [];
        list("]", () => items.push(value()));
        return items;
      }
      case '"':
        return string();
      default:
        return scalar();
    }
  }

  function scalar() {
    const rest = /(?:true|false|null|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/y;
    rest.lastIndex = at;
    const found = rest.exec(text);
    if (!found) fail();
    at = rest.lastIndex;
    const words = { true: true, false: false, null: null };
    return found[0] in words ? words[found[0]] : new Num(found[0]);
  }

  const whole = value();
  skip();
  if (at !== text.length) fail();
  return whole;
}

/** What `exact` made, as JSON.parse would have it. */
export function plain(value) {
  if (value instanceof Map) {
    const object = Object.create(null);
    for (const [key, item] of value) object[key] = plain(item);
    return object;
  }
  if (Array.isArray(value)) return value.map(plain);
  return value instanceof Num ? Number(value.text) : value;
}

/** Whether two values are the same; the order of keys makes no difference. */
export function same(one, other) {
  if (one instanceof Map) {
    if (!(other instanceof Map) || one.size !== other.size) return false;
    for (const [key, item] of one) if (!other.has(key) || !same(item, other.get(key))) return false;
    return true;
  }
  if (Array.isArray(one)) {
    return Array.isArray(other) && one.length === other.length && one.every((item, i) => same(item, other[i]));
  }
  if (one instanceof Num) return other instanceof Num && one.text === other.text;
  return one === other;
}
