// ---- Links to a view: the address says what is shown ----

/** After the section's name come the parts that are not as at first, such as #curves&against=receiver&slot=12. */
const links = {
  parts: new Map(), // by name: {get, set}; `get` gives a text, or null where all is as at first
  section: "",
  timer: null,

  keep(name, get, set) { this.parts.set(name, { get, set }); },

  get text() {
    const said = [...this.parts].map(([name, { get }]) => [name, get()]).filter(([, value]) => value !== null);
    return `#${[this.section, ...said.map(([name, value]) => `${name}=${encodeURIComponent(value)}`)].join("&")}`;
  },

  /** Browsers refuse addresses that change many times a second. */
  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), 200);
  },

  write() {
    clearTimeout(this.timer);
    if (location.hash !== this.text && (location.hash || this.text !== "#")) history.replaceState(null, "", this.text);
  },

  /** Show what the address says; what it does not mention stays as it is. */
  follow() {
    const [section, ...said] = location.hash.slice(1).split("&");
    const known = document.querySelector(`main > section[id="${CSS.escape(section)}"]`);
    this.section = known ? section : "";
    for (const [name, value] of said.map((part) => part.split("="))) {
      try {
        this.parts.get(name)?.set(decodeURIComponent(value ?? ""));
      } catch (error) {
        if (!(error instanceof URIError)) throw error; // half a link shows half a view
      }
    }
    if (known && said.length) known.scrollIntoView({ behavior: "instant" });
    this.changed();
  },

  start() {
    this.follow();
    window.addEventListener("hashchange", () => this.follow());
  },
};

const schemeCalled = (label) => page.schemes.findIndex((scheme) => scheme.label === label);

/** Keep the choice of a menu; `word` names an option's value in the address, `choice` finds it again. */
function keepSelect(name, select, word = (value) => value, choice = (text) => text) {
  const first = select.value;
  links.keep(name, () => (select.value === first ? null : word(select.value)), (text) => {
    const value = String(choice(text));
    if (![...select.options].some((option) => option.value === value)) return;
    select.value = value;
    select.dispatchEvent(new Event("change"));
  });
  select.addEventListener("change", () => links.changed());
}

const keepSchemeSelect = (name, select) => keepSelect(name, select, (value) => page.schemes[value]?.label ?? value,
  (text) => (schemeCalled(text) < 0 ? text : schemeCalled(text)));
